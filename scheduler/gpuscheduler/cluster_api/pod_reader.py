"""Reads the text of Pod objects, and parses each spec once.

A pod is shown again with each change of its status and when it is bound, and the pods of a Deployment are equal but for
what is their own. So the bytes of all other parts are compared, and what follows from equal bytes is taken from the
first reading.
"""

from collections.abc import Container, Mapping
from typing import Any

import msgspec

from gpuscheduler.cluster_api.connection import Json
from gpuscheduler.core.pod_facts import (
    VOLATILE_ANNOTATIONS,
    VOLATILE_METADATA,
    PodFacts,
    PodTemplate,
    facts_by_template,
    needs_spec,
    pod_facts,
    pod_template,
)

MOST_BYTES = 4 << 20
"""Bytes of the texts whose templates are kept. With what follows from them, they are in memory about once."""
_ENTRY_BYTES = 512
"""What is counted for a template besides its text."""
_NOT_IN_KEY = VOLATILE_METADATA | {"annotations"}


class _Pod(msgspec.Struct):
    metadata: dict[str, msgspec.Raw]
    spec: dict[str, msgspec.Raw]
    status: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_Pod).decode
_decode_annotations = msgspec.json.Decoder(dict[str, str]).decode


class PodReader:
    """Reads pods, and keeps the templates of the latest ones."""

    def __init__(self) -> None:
        self._templates: dict[int, tuple[PodTemplate, int]] = {}
        """Hash of the bytes to the template, and the number of the bytes; the oldest first."""
        self._bytes = 0

    def read(self, text: bytes) -> PodFacts:
        """The pod. Raises msgspec.DecodeError for what is no JSON object."""
        try:
            pod = _decode(text)
            annotations = _decode_annotations(pod.metadata.get("annotations", b"{}"))
        except msgspec.ValidationError:
            # Fields of another shape count as empty.
            return pod_facts(msgspec.json.decode(text, type=Json))
        key, size = _key(pod, annotations)
        kept = self._templates.get(key)
        if kept is None or needs_spec(pod.status):
            whole = msgspec.json.decode(text, type=Json)
            template = kept[0] if kept else self._new(key, size, whole)
            return facts_by_template(whole, template)
        return facts_by_template(_volatile(pod, annotations), kept[0])

    def _new(self, key: int, size: int, pod: Json) -> PodTemplate:
        """The template of a pod, which is kept in place of the oldest ones."""
        template = pod_template(pod)
        self._templates[key] = template, size
        self._bytes += size
        while self._bytes > MOST_BYTES:
            oldest = next(iter(self._templates))
            _, oldest_size = self._templates.pop(oldest)
            self._bytes -= oldest_size
        return template


def _key(pod: _Pod, annotations: Mapping[str, str]) -> tuple[int, int]:
    """A number that is equal for pods with one template, and how many bytes it stands for.

    What is not known to be volatile counts, so that no part of a pod that is read may be an old one.
    """
    metadata = _bytes_without(pod.metadata, _NOT_IN_KEY)
    spec = _bytes_without(pod.spec, {"nodeName"})
    others = {name: written for name, written in annotations.items() if name not in VOLATILE_ANNOTATIONS}
    values = (*metadata.values(), *spec.values(), *others.values())
    size = _ENTRY_BYTES + sum(map(len, values))
    names = tuple(metadata), tuple(spec), tuple(others)
    is_on_node = bool(_node(pod))
    # Of bytes and texts, Python's hash has a secret key. So no tenant can make two pods look equal.
    return hash((is_on_node, names, values)), size


def _bytes_without(fields: Mapping[str, msgspec.Raw], names: Container[str]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in fields.items() if name not in names}


def _node(pod: _Pod) -> Any:  # noqa: ANN401 (as it is written)
    """The name of the pod's node; None without one."""
    raw = pod.spec.get("nodeName")
    return None if raw is None else msgspec.json.decode(raw)


def _volatile(pod: _Pod, annotations: Mapping[str, str]) -> Json:
    """The parts of a pod that no template has."""
    metadata: Json = {"annotations": annotations}
    for name, raw in pod.metadata.items():
        if name in VOLATILE_METADATA and name != "managedFields":
            metadata[name] = msgspec.json.decode(raw)
    return {"metadata": metadata, "spec": {"nodeName": _node(pod)}, "status": pod.status}
