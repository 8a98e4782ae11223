"""Use of GPUs: memory, work and processes, with the cgroup of each process. Sampled when a page asks for it, and every
few seconds on GPUs that containers hold.
"""
