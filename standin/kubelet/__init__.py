"""A small device manager with kubelet's device-plugin, registration and pod-resources APIs, in several versions."""
