"""Decisions of schedulers for pods, read from annotations, and whether the agent can trust them.
`deviceplugin/assignment` decides what a container gets if a decided GPU is full or unhealthy. Also the texts in
which a node publishes its GPUs and links for schedulers. The package does not depend on a node's state.
"""
