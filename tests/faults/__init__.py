"""Trouble between a client and its connection point: a proxy that makes it, and what the SDK promises under it."""
