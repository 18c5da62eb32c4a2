"""One file a command; what they need of the broker is imported when they run."""
