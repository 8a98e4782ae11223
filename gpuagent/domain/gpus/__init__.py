"""The GPUs of a node: their links, and which of them are fit for use. It imports no other package of the core."""
