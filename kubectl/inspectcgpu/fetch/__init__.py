"""Reads the cluster: nodes and pods, agents, watches."""
