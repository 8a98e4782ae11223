"""Kubelet's device-plugin API: which container a call is for, and which devices it gets."""
