"""A whole cluster in one process, in virtual time, under one seed.

The agents are the product's own, from the composition root down to each thread: `runtime` puts a simulated machine
in the place of Python's threads, locks, queues, clocks, of gRPC's wire and of HTTP's. Kubelet, API server and NVML are
the stand-ins that the other tests use. `parts` puts a cluster together, `scenario` draws what people and faults do,
`history` records what happens, `checker` holds it against the promises, and `shrink` makes a failure short.
"""
