"""Kubelet's device checkpoint, read only: the one place that shows what ordinary init containers hold.

Pod-resources leaves them out although kubelet keeps their devices until the pod ends. The format is kubelet's own. The
reader skips unknown entries, and entries of pods that have ended may remain.
"""

import base64
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.pods import exchange
from gpuagent.domain.pods.annotations import V1_GPU_UNITS
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.grant import DRIVER_ANNOTATION, KEPT_VARIABLES
from gpuagent.system import json_file

log = logging.getLogger(__name__)

FILE_NAME = "kubelet_internal_checkpoint"


def read(directory: Path) -> tuple[CheckpointEntry, ...]:
    """The entries of the checkpoint in kubelet's device-plugins directory; empty if there is no checkpoint."""
    try:
        data = json_file.load(directory / FILE_NAME)
        entries = data["Data"]["PodDeviceEntries"] or []
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        log.warning("Failed to read kubelet's checkpoint", extra={"directory": str(directory), "error": err})
        return ()
    if not isinstance(entries, list):
        log.warning("Failed to read kubelet's checkpoint", extra={"directory": str(directory), "error": "no list"})
        return ()
    readable = []
    for raw in entries:
        entry = _entry(raw)
        if entry:
            readable.append(entry)
    return tuple(readable)


def _entry(entry: dict[str, Any]) -> CheckpointEntry | None:
    try:
        ids = _ids(entry["DeviceIDs"])
        pod = _text(entry["PodUID"])
        container = _text(entry["ContainerName"])
        resource = _text(entry["ResourceName"])
        annotations, units, kept_env = _answer(entry.get("AllocResp") or "")
        written = annotations.get(exchange.key(resource))
        exchanged = exchange.read(written, ids) if written else {}
        isolation = annotations.get(DRIVER_ANNOTATION, "")
        return CheckpointEntry(pod, container, resource, frozenset(ids), exchanged, units, kept_env, isolation)
    except (DecodeError, ValueError, KeyError, TypeError, AttributeError) as err:
        log.warning("Left out an entry of kubelet's checkpoint", extra={"error": err})
        return None


def _ids(value: Any) -> list[str]:  # noqa: ANN401 (from JSON)
    """The device ids of an entry: a map from NUMA node to ids, or a plain list before kubelet 1.20."""
    groups = value.values() if isinstance(value, dict) else [value or ()]
    ids: list[str] = []
    for group in groups:
        ids += map(_text, group)
    return ids


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name or a device id is not a text")
    return value


# Kubelet's file changes with each pod, and most of its entries are those of the last read.
@lru_cache(maxsize=512)
def _answer(encoded: str) -> tuple[dict[str, str], frozenset[int], dict[str, str]]:
    """Annotations of the agent's answer to kubelet, how many units of memory its GPUs had in all, and variables."""
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(encoded))
    texts = answer.envs.get(V1_GPU_UNITS, "").split(",")
    units = frozenset(int(text) for text in texts if text.isdecimal())
    kept_env = {name: answer.envs[name] for name in KEPT_VARIABLES if name in answer.envs}
    return dict(answer.annotations), units, kept_env
