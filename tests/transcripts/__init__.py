"""Whole conversations as text: what is said to a cluster, and everything that its machines then say."""
