"""Which GPUs a request gets: one GPU or several equal ones for a share, the best set for whole GPUs, and the order
of a ring. It knows neither a node's state nor who asks, and refuses with a reason.
"""
