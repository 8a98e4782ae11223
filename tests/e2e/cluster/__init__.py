"""A real one-node Kubernetes cluster for the end-to-end tests; the class to use is `Cluster`."""

from .api_client import ApiError
from .audit_log import AuditLog
from .core import Cluster
from .host import MachineInUseError
from .kubelet_files import Checkpoint, CheckpointEntry
from .manifests import IMAGE, NODE_NAME, PAUSE_IMAGE, container, pod_manifest
from .processes import ComponentError
from .waiting import WAIT_S

__all__ = [
    "IMAGE",
    "NODE_NAME",
    "PAUSE_IMAGE",
    "WAIT_S",
    "ApiError",
    "AuditLog",
    "Checkpoint",
    "CheckpointEntry",
    "Cluster",
    "ComponentError",
    "MachineInUseError",
    "container",
    "pod_manifest",
]
