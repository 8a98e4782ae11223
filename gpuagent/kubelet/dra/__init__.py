"""Kubelet's API of DRA drivers: sockets, registration, messages to the core's values and back."""
