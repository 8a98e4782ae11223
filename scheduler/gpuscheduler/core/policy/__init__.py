"""The cost of a choice of node and GPU. A policy rates all nodes at once, on arrays."""
