"""The simulator: the real machines in one thread, over a seeded network and clock, judged by the filter language."""
