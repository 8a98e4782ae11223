"""The health of each GPU, in threads of its own: XID events, and what the driver answers when it is queried. A query
that hangs delays no other GPU and no XID. `health_watch` has the threads of all GPUs, and decides which GPU an event is
about. `xid_watch` waits for the events of one GPU. `health_poll` has it queried on time; what is known of the GPU, and
what follows from an answer, is a value (`polled_gpu`, `poll_requests`).
"""
