"""What GPUs a node has, what joins them, and which of them are fit for use."""
