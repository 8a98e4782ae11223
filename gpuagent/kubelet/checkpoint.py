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
    return tuple(found for entry in entries if (found := _entry(entry)))


def _entry(entry: dict[str, Any]) -> CheckpointEntry | None:
    try:
        ids = entry["DeviceIDs"]
        # A map from NUMA node to ids; a plain list before kubelet 1.20.
        flat = [i for group in ids.values() for i in group] if isinstance(ids, dict) else list(ids or ())
        pod, container, resource = (entry[key] for key in ("PodUID", "ContainerName", "ResourceName"))
        if not all(isinstance(name, str) for name in (pod, container, resource, *flat)):
            raise TypeError("a name or a device id is not a text")  # noqa: TRY301 (as other wrong types)
        annotations, units = _answer(entry.get("AllocResp") or "")
        text = annotations.get(exchange.key(resource))
        exchanged = exchange.read(text, flat) if text else {}
        return CheckpointEntry(pod, container, resource, frozenset(flat), exchanged, units)
    except (DecodeError, ValueError, KeyError, TypeError, AttributeError) as err:
        log.warning("Left out an entry of kubelet's checkpoint", extra={"error": err})
        return None


@lru_cache(maxsize=512)
def _answer(encoded: str) -> tuple[dict[str, str], frozenset[int]]:
    """Annotations of the agent's answer to kubelet, and how many units of memory its GPUs had in all."""
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(encoded))
    texts = answer.envs.get(V1_GPU_UNITS, "").split(",")
    units = frozenset(int(text) for text in texts if text.isdecimal())
    return dict(answer.annotations), units
