"""Small worlds, exhaustively: every order of every message between a few pods, nodes, and one crash.

A world is a value: the API server's pods, the scheduler's core, and for each node a kubelet and the agent's core.
Messages are on their way between them, and any of them may arrive next. `search` follows each of these orders to a
stated depth, breadth first, and takes worlds for one that differ in names only. So what it reports holds for all of
these orders, where `make simulate` tries some. What decides is the product's own: `Scheduling`, `step`, `Allocator`.
"""
