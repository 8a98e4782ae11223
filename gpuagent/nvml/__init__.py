"""The edge to the NVIDIA driver, and the only importer of `pynvml` other than `simulation` (distribution nvidia-ml-py).
`watch` starts its threads. `discovery` has the driver read again and again, and `driver_reader` reads it once. `health`
waits for faults, `stall` detects calls that hang, and `binding` makes the calls. They post events and decide nothing.
`answers` checks the type and range of every answer once: a value that NVML does not allow fails that call and affects
only that GPU.
"""
