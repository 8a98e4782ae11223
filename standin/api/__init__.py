"""A small API server on loopback: nodes, pods, Events and ConfigMaps, with faults on request."""
