"""A simulated NVML behind pynvml, and the boxes that it simulates."""
