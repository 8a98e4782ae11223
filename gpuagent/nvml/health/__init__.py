"""The health of each GPU, in threads of its own: XID events, and what the driver answers when it is queried. A query
that hangs delays no other GPU and no XID.
"""
