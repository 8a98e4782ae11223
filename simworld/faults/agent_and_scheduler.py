"""Faults in what the agent and gpuscheduler make of each other's annotations."""

from dataclasses import replace
from typing import Any

from gpuagent.domain import step
from gpuagent.domain.deviceplugin import allocation_rules, assignment, job
from gpuagent.domain.reconcile import pod_annotations, published_gpus, published_holdings
from gpuagent.domain.scheduling import decision
from gpuagent.domain.scheduling.node_gpus import NodeGpus, node_gpus
from gpuscheduler.core import node_facts
from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.decisions import decided_use
from simworld.faults.replacing import put


def a_decision_on_a_former_pod_counts() -> None:
    """Annotations that were copied from a pod with its YAML decide on the copy."""
    for module in (decision, job, pod_annotations, published_holdings, decided_use):
        put(module, "for_another_pod", lambda _pod: "")


def a_decision_for_whole_gpus_is_left() -> None:
    """The agent chooses whole GPUs itself, whatever a scheduler has chosen for the pod."""
    for module in (assignment, allocation_rules):
        put(module, "named_gpus", lambda *_: None)


def an_annotation_may_claim_more_than_the_limits() -> None:
    """As it was (A2): what a pod may hold is bounded below by its limits, and not above."""

    def not_for(_pod: object, container: Any, resource: str, gpus: Any) -> str:  # noqa: ANN401 (spec, and units)
        wanted = container.limits.get(resource, 0)
        return "" if sum(gpus.values()) >= wanted else "gives too little"

    put(decision, "_not_for_container", not_for)


def a_pod_larger_than_its_gpu_is_decided() -> None:
    """A mutant that unit tests missed (A8): a decision that no GPU can ever keep reserves what there is."""
    put(decision, "_too_much", lambda *_: "")


def an_unhealthy_gpu_is_published_as_usable() -> None:
    """Gpuscheduler decides for a GPU that the agent does not give out."""
    make = published_gpus.published_gpus

    def all_usable(state: Any) -> Any:  # noqa: ANN401 (the state, and its GPUs)
        made = make(state)
        gpus = tuple(replace(gpu, usable=True) for gpu in made.gpus)
        return replace(made, gpus=gpus)

    put(published_gpus, "published_gpus", all_usable)


def an_unhealthy_gpu_is_read_as_usable() -> None:
    """The same mistake on the other side."""
    make = node_gpus

    def all_usable(annotations: Any) -> Any:  # noqa: ANN401 (annotations, and GPUs)
        made = make(annotations)
        if not isinstance(made, NodeGpus):
            return made
        gpus = tuple(replace(gpu, usable=True) for gpu in made.gpus)
        return replace(made, gpus=gpus)

    put(node_facts, "node_gpus", all_usable)


def what_pods_hold_is_not_published() -> None:
    """A scheduler that starts again believes annotations that an author has edited."""
    put(step, "with_published_pods", lambda _before, after: after.published_pods)


def the_agents_word_does_not_count() -> None:
    """The same mistake on the other side."""
    put(BoundPods, "_with_held", lambda _self, pod: pod)


FAULTS = (
    a_decision_on_a_former_pod_counts,
    a_decision_for_whole_gpus_is_left,
    an_annotation_may_claim_more_than_the_limits,
    a_pod_larger_than_its_gpu_is_decided,
    an_unhealthy_gpu_is_published_as_usable,
    an_unhealthy_gpu_is_read_as_usable,
    what_pods_hold_is_not_published,
    the_agents_word_does_not_count,
)
