"""`kubectl inspect cgpu`: which GPU of a cluster has what on it."""
