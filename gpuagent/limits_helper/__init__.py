"""`gpuagent memory-limits`: sets memory limits of cgroups in the NVIDIA driver, for the agent, which has no privileges.

The only part that needs CAP_SYS_ADMIN. It builds every path itself, checks it, and writes nothing but limits.
"""
