"""Decisions of schedulers for pods, read from annotations, and whether the agent can trust them. It does not depend on
a node's state.
"""
