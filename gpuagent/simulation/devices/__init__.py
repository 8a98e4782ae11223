"""Real processes that use simulated GPUs, and the cgroups that they are in.

A process allocates at `device_socket`, and `device_client` answers it. `device_memory` charges the memory to the cgroup
of the process, which `cgroup_folders` finds among the machine's own.
"""
