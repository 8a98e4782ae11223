"""A typed facade over `pynvml`: plain values out, and `CallError` for errors, because NVML's exceptions are unhashable
and compare by number. `nvml` has the facade for one thread. It is put together from the calls about a GPU itself
(`gpu_calls`), its links (`wiring_calls`), its health (`health_calls`) and its faults (`fault_events`). `calls` makes
each of them, checks the answer, and shows other threads which call is in progress. `limit_calls` has the calls about
memory limits of cgroups, which only a privileged process makes.
"""
