"""`kubectl inspect cgpu`: the use of each GPU of a cluster."""
