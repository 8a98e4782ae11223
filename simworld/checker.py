"""Holds what is there in a quiet world against the promises. `history` checks what must never be, when it happens."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuagent.domain.reconcile.node_report import node_capacity, node_condition, node_labels
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.domain.status.problems import problems
from gpuagent.simulation.boxes import BoxGpu
from simworld.history import CORES, MEMORY, WHOLE, Living
from simworld.parts.amounts import ENDED, free_amounts, has_claims, lasting_containers, limits
from simworld.parts.node import SimulatedNode
from simworld.waiting import healthy_gpus, is_unisolated, usable_gpus
from standin.api.objects import Json
from standin.api.refusal import Refusal

if TYPE_CHECKING:
    from simworld.world import World

BY_MODE = {
    "share": (MEMORY,),
    "cgpu": (MEMORY,),
    "mps": (MEMORY,),
    "core_mem": (MEMORY, CORES),
    "topology": (WHOLE,),
    "default": (),
    "dra": (),
}
"""Resources above zero in each mode, as `docs/modes.md` has them."""


def check_quiet(world: "World") -> None:
    """Check pods, amounts and books. Everything has been repaired and quiet for long."""
    for node in world.nodes:
        for crash in node.kubelet.crashes:
            world.history.break_promise(f"{node.name}: {crash}")
        _check_health(world, node)
        _check_amounts(world, node)
        _check_published(world, node)
        _check_known_pods(world, node)
        _check_books(world, node)
        _check_ended(world, node)
    for pod in world.api.objects.peek("pods"):
        if not has_claims(pod):  # `claim_checker` has the others
            _check_pod(world, pod)
    for job, uids in world.history.gangs.items():
        _check_gang(world, job, uids)


def _check_gang(world: "World", job: str, uids: list[str]) -> None:
    """A job whose pods are all there, and of which none was refused, runs whole or not at all."""
    # Only gpuscheduler promises this.
    if not world.scenario.decides:
        return
    pods = _living_pods(world, uids)
    # People have deleted some, or some have ended.
    if len(pods) < len(uids):
        return
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    is_partial = 0 < len(bound) < len(uids)
    if is_partial:
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in bound))
        world.history.break_promise(f"{job} has started in part: {names} of {len(uids)} pods")


def _living_pods(world: "World", uids: list[str]) -> list[Json]:
    """Those of the pods that are there and have not ended."""
    living = []
    for pod in world.api.objects.peek("pods"):
        status = pod.get("status") or {}
        has_ended = status.get("phase") in ENDED
        if pod["metadata"]["uid"] in uids and not has_ended:
            living.append(pod)
    return living


def find_pod(world: "World", uid: str) -> str:
    """Phase and message of a pod, or ``gone``."""
    for pod in world.api.objects.peek("pods"):
        if pod["metadata"]["uid"] == uid:
            status = pod.get("status") or {}
            return " ".join(filter(None, (status.get("phase"), status.get("message"))))
    return "gone"


def may_start(world: "World", pod: Json) -> bool:
    """Whether a pod is there and has not ended."""
    metadata = pod["metadata"]
    try:
        current = world.api.objects.get(("pods", metadata["namespace"], metadata["name"]))
    except Refusal:
        return False
    is_same = current["metadata"]["uid"] == metadata["uid"]
    return is_same and current["status"].get("phase") not in ENDED


def mode_of(world: "World", node: SimulatedNode) -> str:
    """The mode that the node's label names."""
    stored = world.api.objects.get(("nodes", "", node.name))
    labels: dict[str, str] = stored["metadata"]["labels"]
    return labels[MODE_LABEL]


def resources_of_probes(world: "World", node: SimulatedNode) -> list[str]:
    """Resources of which the node has amounts left, as a scheduler counts them; memory stands for compute, too."""
    stored = world.api.objects.get(("nodes", "", node.name))
    free = free_amounts(stored, world.api.objects.peek("pods"))
    resources = BY_MODE[mode_of(world, node)]
    has_some = all(free[resource] > 0 for resource in resources)
    return [resource for resource in resources if resource != CORES] if has_some else []


def _check_pod(world: "World", pod: Json) -> None:
    """A bound pod runs with what it asks for, or it says why it does not."""
    node = pod["spec"].get("nodeName")
    if not node:
        return
    meta = pod["metadata"]
    name = meta["name"]
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Failed":
        if not status.get("message"):
            world.history.break_promise(f"{name} was refused without a reason")
        return
    if phase == "Succeeded":
        return
    if "deletionTimestamp" in meta:
        world.history.break_promise(f"{name} on {node} was deleted and does not end")
        return
    if phase != "Running" and not _says_why_it_waits(world, pod):
        world.history.break_promise(f"{name} on {node} does not run: {status}")
        return
    _check_containers(world, pod, is_said_to_run=phase == "Running")


def _check_containers(world: "World", pod: Json, *, is_said_to_run: bool) -> None:
    """All containers of a running pod live. Those that live have what they ask for, also while others still wait."""
    meta = pod["metadata"]
    for container in lasting_containers(pod):
        living = world.history.living.get((meta["uid"], container["name"]))
        if living is not None:
            _check_grant(world, pod, container, living)
        elif is_said_to_run:
            world.history.break_promise(f"{meta['name']}/{container['name']} is said to run and does not")


def _says_why_it_waits(world: "World", pod: Json) -> bool:
    """Whether its containers wait with a sentence that says why they never start.

    In mode core_mem a container asks for memory and compute, or for neither. No scheduler checks that, so such a pod is
    refused when its container starts, and stays. So does a pod whose GPU is lost for good before its container starts.
    """
    wanted = limits(pod)
    asks_for_half = (MEMORY in wanted) != (CORES in wanted)
    node = next(node for node in world.nodes if node.name == pod["spec"]["nodeName"])
    reasons = []
    if node.lost:
        # The driver sets no limit on it either.
        reasons += ["is gone from this node", "GPU is lost"]
    if asks_for_half:
        reasons.append("a container has both, or neither")
    messages = []
    for status in pod["status"].get("containerStatuses") or ():
        waiting = status["state"].get("waiting")
        if waiting is not None:
            messages.append(waiting.get("message", ""))
    said = [any(reason in message for reason in reasons) for message in messages]
    return bool(said) and all(said)


def _check_grant(world: "World", pod: Json, container: Json, living: Living) -> None:
    """A container has what it asks for, on GPUs, and its pod says on which."""
    name = f"{pod['metadata']['name']}/{container['name']}"
    for resource, limit in container["resources"]["limits"].items():
        amount = int(limit)
        got = len(living.units.get(resource, ()))
        if got != amount:
            world.history.break_promise(f"{name} asks for {amount} {resource} and got {got}")
    # Where the agent has no GPU for a container, the variable has a text that says so.
    has_gpus = bool(living.gpus) and all(gpu.startswith("GPU-") for gpu in living.gpus)
    if not has_gpus:
        visible = living.env.get("NVIDIA_VISIBLE_DEVICES")
        world.history.break_promise(f"{name} runs without a GPU: NVIDIA_VISIBLE_DEVICES={visible!r}")
    _check_index(world, pod, name, living)


def _check_index(world: "World", pod: Json, name: str, living: Living) -> None:
    """The annotation of a pod has the number of the GPU that its container got."""
    # Of several containers with a GPU each, the one annotation can name one GPU only.
    if len(lasting_containers(pod)) > 1:
        return
    # An agent that starts after a GPU was lost does not know the GPU of the units.
    if _has_lost_gpu(world, living):
        return
    index = living.env.get("ALIYUN_COM_GPU_MEM_IDX")
    annotations = pod["metadata"].get("annotations") or {}
    written = annotations.get("ALIYUN_COM_GPU_MEM_IDX")
    if index is not None and written != index:
        world.history.break_promise(f"{name} has GPU {index}, and its annotation says {written!r}")


def _has_lost_gpu(world: "World", living: Living) -> bool:
    return any(not node.lost.keys().isdisjoint(living.gpus) for node in world.nodes)


def _check_amounts(world: "World", node: SimulatedNode) -> None:
    """Amounts are what the mode promises, or a problem says why they are not."""
    stored = world.api.objects.get(("nodes", "", node.name))
    mode = mode_of(world, node)
    allocatable = stored["status"].get("allocatable") or {}
    assert node.agent is not None
    reasons = [f"{problem.reason}: {problem.message}" for problem in problems(node.agent.state)]
    usable = usable_gpus(world, node)
    if is_unisolated(node, mode) and not reasons:
        world.history.break_promise(f"{node.name} isolates nothing in mode {mode}, and no problem says so")
    for resource in (MEMORY, CORES, WHOLE):
        if resource not in allocatable:
            world.history.break_promise(f"{node.name} in mode {mode} says nothing of {resource}, not even zero")
        amount = int(allocatable.get(resource, 0))
        is_of_mode = resource in BY_MODE[mode] and not is_unisolated(node, mode)
        full = _amount_of(healthy_gpus(node), resource) if is_of_mode else 0
        # A reason for one GPU is no reason to offer less of another one.
        least = _amount_of(usable, resource) if is_of_mode else 0
        offers = f"{node.name} in mode {mode} offers {amount}"
        if amount > full:
            world.history.break_promise(f"{offers} {resource}, and has {full}")
        if amount < least:
            world.history.break_promise(f"{offers} {resource}, and its usable GPUs have {least}")
        if amount < full and not reasons:
            world.history.break_promise(f"{offers} of {full} {resource}, and no problem says why")


def _check_published(world: "World", node: SimulatedNode) -> None:
    """The Node says what its agent would write now. Schedulers go by its annotations, and people by the rest."""
    assert node.agent is not None
    state = node.agent.state
    stored = world.api.objects.get(("nodes", "", node.name))
    metadata = stored["metadata"]
    status = stored["status"]
    condition = node_condition(state)
    conditions = [other for other in status.get("conditions") or () if other["type"] == condition["type"]]
    _compare(world, node, "label", metadata.get("labels") or {}, node_labels(state))
    _compare(world, node, "annotation", metadata.get("annotations") or {}, node_annotations(state))
    _compare(world, node, "capacity", status.get("capacity") or {}, node_capacity(state))
    _compare(world, node, "condition", conditions[0] if conditions else {}, condition)


def _compare(
    world: "World", node: SimulatedNode, what: str, written: Mapping[str, str], wanted: Mapping[str, str | None]
) -> None:
    """Each text on the Node is the one that its agent wants."""
    for key, text in wanted.items():
        on_node = written.get(key)
        if on_node != text:
            difference = f"{what} {key} is {on_node!r}, and its agent wants {text!r}"
            world.history.break_promise(f"{node.name}: its {difference}")


def _check_health(world: "World", node: SimulatedNode) -> None:
    """No GPU is taken for unhealthy that has had no fault for long."""
    assert node.agent is not None
    whole = {gpu.uuid for gpu in healthy_gpus(node)}
    for uuid in sorted(whole.intersection(node.agent.state.unhealthy)):
        world.history.break_promise(f"{node.name}: the agent takes {uuid} for unhealthy, which is not")


def _amount_of(gpus: Sequence[BoxGpu], resource: str) -> int:
    """What GPUs have of a resource."""
    if resource == WHOLE:
        return len(gpus)
    if resource == CORES:
        return 100 * len(gpus)
    return sum(gpu.memory_mib // 1024 for gpu in gpus)


def _check_known_pods(world: "World", node: SimulatedNode) -> None:
    """The agent knows the pods of its node: no living one is missing, and none that is gone has stayed."""
    assert node.agent is not None
    there = set()
    living = set()
    for pod in world.api.objects.peek("pods"):
        if pod["spec"].get("nodeName") != node.name:
            continue
        uid = pod["metadata"]["uid"]
        there.add(uid)
        if (pod.get("status") or {}).get("phase") not in ENDED:
            living.add(uid)
    known = {pod.uid for pod in node.agent.state.pods.seen}
    for uid in sorted(known - there):
        world.history.break_promise(f"{node.name}: the agent knows of {world.history.name(uid)}, which is gone")
    for uid in sorted(living - known):
        world.history.break_promise(f"{node.name}: the agent does not know of {world.history.name(uid)}")


def _check_books(world: "World", node: SimulatedNode) -> None:
    """The agent knows of every device what kubelet knows of living pods."""
    known = _ids_that_the_agent_knows(node)
    for living in world.history.on_node(node.name):
        pod = world.history.name(living.pod_uid)
        for resource, held_ids in living.units.items():
            known_ids = known.get((pod, living.container, resource), frozenset())
            if known_ids == held_ids:
                continue
            holder = f"{node.name}: {pod}/{living.container}"
            world.history.break_promise(
                f"{holder} has {len(held_ids)} {resource}, and the agent knows of {len(known_ids)}"
            )

    for kept, units in world.history.kept_on_node(node.name):
        pod = world.history.name(kept.pod_uid)
        for resource, ids in units.items():
            # Kubelet may have given them to a container of the pod that waits, and lists only that one.
            of_pod = [
                held for (owner, _, held_resource), held in known.items() if owner == pod and held_resource == resource
            ]
            known_ids = frozenset[str]().union(*of_pod)
            if not ids <= known_ids:
                holder = f"{node.name}: {pod}/{kept.container} has ended"
                unknown = len(ids - known_ids)
                world.history.break_promise(
                    f"{holder}, kubelet keeps {len(ids)} {resource}, and the agent does not know of {unknown}"
                )


def _check_ended(world: "World", node: SimulatedNode) -> None:
    """For the agent, pods that are gone or have ended hold no device."""
    assert node.agent is not None
    living = set()
    for pod in world.api.objects.peek("pods"):
        is_here = pod["spec"].get("nodeName") == node.name
        if is_here and (pod.get("status") or {}).get("phase") not in ENDED:
            living.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))
    for holding in node.agent.state.living_holdings:
        owner = holding.owner.pod
        if (owner.namespace, owner.name) not in living:
            units = f"{len(holding.ids)} {holding.resource}"
            world.history.break_promise(f"{node.name}: for the agent, {owner.name} still has {units}")


def _ids_that_the_agent_knows(node: SimulatedNode) -> dict[tuple[str, str, str], frozenset[str]]:
    """Device ids that living containers hold by the agent's record, by pod, container and resource."""
    assert node.agent is not None
    known: dict[tuple[str, str, str], frozenset[str]] = {}
    for holding in node.agent.state.living_holdings:
        owner = holding.owner.pod
        # The history names pods in this way.
        is_in_default = owner.namespace in ("", "default")
        pod = owner.name if is_in_default else f"{owner.namespace}/{owner.name}"
        key = pod, holding.owner.container, holding.resource
        known[key] = known.get(key, frozenset()) | holding.ids
    return known
