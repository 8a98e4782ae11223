"""`--why`: the sentence about one pod."""

from collections.abc import Sequence
from typing import Any

from gpuagent.system.printable import printable
from inspectcgpu.read.why import PodWhy


def why(answer: PodWhy) -> list[str]:
    """The lines."""
    verb = "waits" if answer.waits else "does not wait"
    lines = [printable(f"Pod {answer.pod} {verb}: {answer.text}")]
    lines += [printable(f"Note: {note}") for note in answer.notes]
    return lines


def document(answer: PodWhy) -> dict[str, Any]:
    """The answer for JSON and YAML."""
    notes: Sequence[str] = answer.notes
    return {
        "namespace": answer.pod.namespace,
        "name": answer.pod.name,
        "waits": answer.waits,
        "why": answer.text,
        "notes": list(notes),
    }
