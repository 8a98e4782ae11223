"""Samples what GPUs are used for, and finds the containers of the processes."""
