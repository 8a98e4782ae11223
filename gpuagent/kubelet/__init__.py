"""The kubelet edge: plugin sockets, registration, pod-resources. The only importer of grpc; it decides nothing."""
