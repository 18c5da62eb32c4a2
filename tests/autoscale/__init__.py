"""The autoscaler's machines against a cluster that is reckoned, not run: seeded, and hours in seconds."""
