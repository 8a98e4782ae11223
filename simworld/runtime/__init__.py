"""The simulated machine: threads, time, gRPC and HTTP of all processes of a cluster, in one thread, under one seed."""
