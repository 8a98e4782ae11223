"""A process in a pod."""

from tests.unit.kube.api.in_pod import certificate, pod, renewed

__all__ = ["certificate", "pod", "renewed"]
