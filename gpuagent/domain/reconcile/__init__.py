"""The desired state of the API server: the Node, ConfigMaps, annotations of pods, the startup taint, and which failed
pods to delete. It compares and returns the smallest change; `kube/write` sends it.
"""
