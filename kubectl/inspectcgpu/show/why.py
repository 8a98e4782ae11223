"""`--why`: the sentence about one pod."""

from collections.abc import Sequence
from typing import Any

from gpuagent.system.printable import printable
from inspectcgpu.read.why import PodWhy


def why(found: PodWhy) -> list[str]:
    """The lines."""
    verb = "waits" if found.waits else "does not wait"
    lines = [printable(f"Pod {found.pod} {verb}: {found.text}")]
    lines += [printable(f"Note: {note}") for note in found.notes]
    return lines


def document(found: PodWhy) -> dict[str, Any]:
    """The answer for JSON and YAML."""
    notes: Sequence[str] = found.notes
    return {
        "namespace": found.pod.namespace,
        "name": found.pod.name,
        "waits": found.waits,
        "why": found.text,
        "notes": list(notes),
    }
