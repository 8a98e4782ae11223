"""`--why`: the sentence about one pod, or about each pod of a workload."""

from collections.abc import Iterator, Sequence
from typing import Any

from gpuagent.system.printable import printable
from inspectcgpu.read.why import PodWhy, WorkloadWhy

MOST_LINES = 20
"""Lines about the pods of a workload."""
MOST_NAMED = 3
"""Names of pods with the same answer in a line. It counts the others."""


def why(answer: PodWhy | WorkloadWhy) -> list[str]:
    """The lines."""
    lines = [_of_pod(answer)] if isinstance(answer, PodWhy) else [*_of_workload(answer)]
    lines += [f"Note: {note}" for note in answer.notes]
    return [printable(line) for line in lines]


def _of_pod(answer: PodWhy) -> str:
    verb = "waits" if answer.waits else "does not wait"
    return f"Pod {answer.pod} {verb}: {answer.text}"


def _of_workload(answer: WorkloadWhy) -> Iterator[str]:
    title = f"{answer.kind} {answer.name}"
    count = len(answer.pods) + answer.more
    if not count:
        yield f"{title} has no pods: {answer.text}"
        return
    waiting = sum(pod.waits for pod in answer.pods) + answer.more
    pods_word = "pods" if count > 1 else "pod"
    verb = "wait" if waiting > 1 else "waits"
    yield f"{title}: {waiting or 'none'} of {count} {pods_word} {verb}"
    if answer.text:
        are = "pod is" if answer.missing == 1 else "pods are"
        yield f"- {answer.missing} more {are} wanted, but not there: {answer.text}"
    # The pods of a workload are alike, so most of them have the same answer.
    alike: dict[tuple[bool, str], list[PodWhy]] = {}
    for pod in answer.pods:
        alike.setdefault((pod.waits, pod.text), []).append(pod)
    groups = list(alike.values())
    for pods in groups[:MOST_LINES]:
        yield f"- {_of_alike(pods)}"
    if answer.more:
        yield f"- {answer.more} more wait, which are not explained here"
    unnamed = sum(map(len, groups[MOST_LINES:]))
    if unnamed:
        # Those that wait come first, and not more of them are explained than there are lines.
        yield f"- {unnamed} more do not wait"


def _of_alike(pods: Sequence[PodWhy]) -> str:
    """The sentence about pods with the same answer."""
    first = pods[0]
    names = [pod.pod.name for pod in pods]
    more = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED])
    subject = f"{named} and {more} more" if more > 0 else named
    # The text is about one pod.
    each = "each of " if len(pods) > 1 else ""
    return f"{each}{subject} {'waits' if first.waits else 'does not wait'}: {first.text}"


def document(answer: PodWhy | WorkloadWhy) -> dict[str, Any]:
    """The answer for JSON and YAML."""
    notes: Sequence[str] = answer.notes
    if isinstance(answer, PodWhy):
        return _values(answer) | {"notes": list(notes)}
    return {
        "kind": answer.kind,
        "namespace": answer.name.namespace,
        "name": answer.name.name,
        "waits": answer.waits,
        "podsMissing": answer.missing,
        "why": answer.text,
        "pods": [_values(pod) for pod in answer.pods],
        "podsNotExplained": answer.more,
        "notes": list(notes),
    }


def _values(answer: PodWhy) -> dict[str, Any]:
    return {
        "namespace": answer.pod.namespace,
        "name": answer.pod.name,
        "waits": answer.waits,
        "why": answer.text,
    }
