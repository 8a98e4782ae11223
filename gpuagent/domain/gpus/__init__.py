"""The GPUs of a node: their links, and which of them are fit for use. `health_verdict` decides when a
fault makes a GPU unhealthy and when it recovers. It imports no other package of the core.
"""
