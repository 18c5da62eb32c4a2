"""Kittiwake: content-based publish/subscribe for sensor data."""
