"""Use of GPUs: memory, work and processes, sampled only when a page asks for it, with the cgroup of each process."""
