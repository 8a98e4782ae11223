"""A small API server on loopback: nodes, pods, Events, ConfigMaps and Leases, with faults on request."""
