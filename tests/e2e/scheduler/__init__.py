"""The scheduler on a real control plane, with nodes that kwok plays."""
