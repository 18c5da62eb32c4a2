"""Decides the size of each layer. Its machines arrive with the autoscaler issue; imports cluster, never actors."""
