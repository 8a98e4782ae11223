"""Which GPUs a request gets. A share gets one GPU or several equal ones; whole GPUs get the best set, in the order of a
ring. It depends neither on a node's state nor on the requesting pod, and refuses with a reason.
`sharer_limits` spreads claims, whose GPUs the scheduler chooses.
"""
