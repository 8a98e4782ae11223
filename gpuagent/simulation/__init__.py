"""A simulated NVML that takes the place of the C library behind `pynvml`, and the boxes that it simulates, as data.
The agent runs the same code on it as on a driver. Only the command line installs it.
"""
