"""Kubelet's half of Dynamic Resource Allocation: drivers, claims, CDI devices, and the pods that use them.

Source: k8s.io/kubernetes v1.36.3, pkg/kubelet/cm/dra and pkg/kubelet/pluginmanager. Left out: claims by extended
resources, and the metrics.
"""
