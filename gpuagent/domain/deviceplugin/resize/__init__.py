"""Changes the memory limits of pods that run.

- `resizing`: from the annotation to what is in force, a step at a time.
- `resize_request`: what can be granted.
- `resize_units`: which further units are free.
- `resize_allocations`: what kubelet has allocated to a pod.
"""
