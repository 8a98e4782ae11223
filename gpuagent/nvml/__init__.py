"""The NVML edge: the only importer of `pynvml` (distribution nvidia-ml-py).

It reads the GPUs of this node and watches their health; it decides nothing.
"""
