"""Reads the health of each GPU: XID events and what the driver answers."""
