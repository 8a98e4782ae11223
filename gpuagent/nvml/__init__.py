"""The edge to the NVIDIA driver, and the only importer of `pynvml` other than `simulation` (distribution nvidia-ml-py).
It reads the GPUs and their links, waits for faults, detects calls that hang, and posts events. It decides
nothing. `answers` checks the type and range of every answer once: a value that NVML does not allow fails that
call and affects only that GPU.
"""
