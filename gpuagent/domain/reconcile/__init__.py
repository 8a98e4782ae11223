"""The desired state of the API server: the Node, ConfigMaps, annotations of pods, and the startup taint. It compares
and returns the smallest change; `kube/write` sends it. `status` knows nothing of this package.
"""
