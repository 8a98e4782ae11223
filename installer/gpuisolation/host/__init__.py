"""The host below a root path: facts, files, users of GPUs, MPS servers."""
