"""What a scheduler decided for a pod, read from its annotations, and whether that can be trusted. It does not depend on
a node's state.
"""
