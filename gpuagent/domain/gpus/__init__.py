"""What GPUs a node has, what joins them, and which of them are fit for use. It imports no other package of the core."""
