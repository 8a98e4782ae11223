"""Parts of `bench.limits_check`: cgroups of its own, programs that use the GPU in them, a process with few rights."""
