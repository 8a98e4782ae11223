"""The edge to kubelet, and the only importer of grpc and protobuf. It translates types and errors once, reads
kubelet's allocations (pod-resources API and checkpoint), and decides nothing.
"""
