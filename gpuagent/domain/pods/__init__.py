"""Pods: their requests (API server), their devices (kubelet), and their annotations. Everything that others wrote is
read here, strictly and within bounds; nothing raises for its content. It does not depend on a node's state.
"""
