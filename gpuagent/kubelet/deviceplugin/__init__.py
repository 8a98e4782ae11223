"""Plugin sockets, registration with kubelet, and the DevicePlugin service of each resource. Only `servicer` knows
gRPC's status codes.
"""
