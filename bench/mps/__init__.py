"""Parts of `bench.mps_check`: the driver that it checks, the programs that it starts, and some of its checks."""
