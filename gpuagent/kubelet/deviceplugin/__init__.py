"""Plugin sockets, registration with kubelet, and the DevicePlugin service of each resource. Only `servicer` uses gRPC's
status codes.
"""
