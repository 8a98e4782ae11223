"""The report of one pod: its GPUs, or why it has none.

Kubelet's allocations count, as the agent of the pod's node shows them. If it shows none, a scheduler's annotations do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.read.agent_page import AgentView
from inspectcgpu.read.gpu_pod import GpuPod, Places
from inspectcgpu.read.resize import Resize, read_resize
from inspectcgpu.report import PodReport

AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Witness:
    """What a pod's node says of its GPUs.

    Attributes:
        page: of its agent; None if that did not answer.
        unseen: why it did not; empty if it was not asked.
        gpus: minor numbers of the GPUs; None if no source has them.
    """

    page: AgentView | None
    unseen: str
    gpus: Sequence[int] | None


def pod_report(pod: GpuPod, witness: Witness, facts: ClusterFacts) -> PodReport:
    """The pod, which is on the node of the witness."""
    faults = list(pod.faults)
    places: dict[str, Mapping[int, int]] = {}
    sources: dict[str, str] = {}
    for resource, annotated in pod.places.items():
        unknown = _unknown_gpus(annotated, witness.gpus)
        if unknown:
            faults.append(f"its annotation names GPU {unknown[0]}, and the node has {_spoken(witness.gpus or ())}")
            continue
        places[resource] = annotated
        sources[resource] = pod.sources[resource]
    by_kubelet = witness.page.places.get(pod.name, {}) if witness.page else {}
    differs = _difference(places, by_kubelet)
    for resource, allocated in by_kubelet.items():
        if resource in pod.asks:
            places[resource] = allocated
            sources[resource] = AGENT
    pending = {resource: amount for resource, amount in pod.asks.items() if resource not in places}
    why = _why(pod, faults, witness, newer=pod.name in facts.newer) if pending else "; ".join(faults)
    return PodReport(
        pod=pod,
        places=places,
        sources=sources,
        pending=pending,
        why=why,
        differs=differs,
        usage=facts.usage.get(pod.name),
        resize=_resize(pod, witness.page),
    )


def _unknown_gpus(annotated: Mapping[int, int], known: Sequence[int] | None) -> list[int]:
    """The GPUs of an annotation that the node does not have; none if its GPUs are not known."""
    return [] if known is None else sorted(set(annotated) - set(known))


def _difference(annotated: Places, by_kubelet: Places) -> str:
    """How kubelet's allocations differ from the annotations, for the last resource that does; empty if none does."""
    difference = ""
    for resource, allocated in by_kubelet.items():
        planned = annotated.get(resource, allocated)
        if dict(planned) != dict(allocated):
            difference = f"its annotation gives it {_units(planned)}, and kubelet gave it {_units(allocated)}"
    return difference


def _resize(pod: GpuPod, view: AgentView | None) -> Resize | None:
    """What became of the pod's request for another limit: its node's agent knows, and an annotation may be forged."""
    answer = pod.limit_answer
    if view is not None and view.resizes is not None:
        answer = view.resizes.get(pod.name, "")
    return read_resize(pod.wanted_limit, answer)


def _why(pod: GpuPod, faults: Sequence[str], witness: Witness, *, newer: bool) -> str:
    """Why none of the pod's GPUs is known."""
    annotated = [] if faults else ["not annotated by a scheduler"]
    parts = [*faults, *annotated, _why_by_agent(witness, newer=newer), pod.waits]
    return "; ".join(filter(None, parts))


def _why_by_agent(witness: Witness, *, newer: bool) -> str:
    """Why the node's agent does not show the pod's GPUs; empty if it was not asked."""
    if witness.page is None:
        return "the node's agent could not be asked" if witness.unseen else ""
    if newer:
        return "the node's agent is asked again soon: it was before the pod changed"
    return "the node's agent has given it none yet" if witness.page.gpus else "the node's agent sees no GPUs"


def _units(gpus: Mapping[int, int]) -> str:
    return ", ".join(f"{units} of GPU {gpu}" for gpu, units in sorted(gpus.items()))


def _spoken(known: Sequence[int]) -> str:
    return ", ".join(map(str, known)) or "none"
