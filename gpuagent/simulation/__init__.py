"""A simulated NVML that takes the place of the C library behind `pynvml`, and the boxes that it simulates, as data.
The agent runs the same code on it as on a driver. Only the command line installs it.

A driver from 615 on limits GPU memory by cgroup. `memory_accounting` is a model of that without I/O, with the backends
of `memory_backends` and the addresses of `memory_groups`. Real processes use it through `devices`.
"""
