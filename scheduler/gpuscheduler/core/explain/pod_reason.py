"""Why a pod without a node waits: what comes first of its gates, its job, its claims, and the GPUs in its limits."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, sentence, text
from gpuagent.domain.sharing.mode import GPU_WHOLE, MODE_LABEL
from gpuscheduler.core.bound_pods import BoundPods
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.claim_facts import ClaimingPod, read_claiming_pod, unscheduled_words
from gpuscheduler.core.explain.claim_reason import ClaimCluster, ClaimReason, claim_reason
from gpuscheduler.core.explain.limit_claims import limit_claims
from gpuscheduler.core.explain.resource_name import node_resources, unknown_resource
from gpuscheduler.core.explain.scheduler_name import CHART_SCHEDULER, STOCK_SCHEDULER, meant_scheduler, untried
from gpuscheduler.core.explain.share_reason import nodes_with_room, share_reason
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import JOB_GATE, PodFacts, pod_facts
from gpuscheduler.core.reservations import Reservations

Json = Mapping[str, Any]
COMPONENT = "gpuscheduler"
_REASONS = ("WaitingForGPUs", "GPUsFragmented", "Defragmenting", "ScaleUpRequested")
"""Events of the scheduler that say why a pod waits."""
NOT_OURS = "asks for no GPU of this project"


@dataclass(slots=True)
class Cluster:
    """Nodes and pods, counted as they are read, so that a large cluster is not kept as JSON.

    Attributes:
        usage: nodes with GPUs, and what pods use of them.
        pods: by UID.
        modes: how many nodes with GPUs are in each mode.
        claims: what claims are compared with.
        nodes_with: how many nodes have a resource for GPUs, of this project or another one.
        schedulers: names of schedulers that place pods: those that are always there, and those of pods on nodes.
    """

    usage: ClusterUsage = field(default_factory=ClusterUsage)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    claims: ClaimCluster = field(default_factory=ClaimCluster)
    nodes_with: Counter[str] = field(default_factory=Counter)
    schedulers: set[str] = field(default_factory=lambda: {CHART_SCHEDULER, STOCK_SCHEDULER})

    def node(self, node: Json) -> None:
        """Take a Node object."""
        labels = mapping(mapping(node.get("metadata")).get("labels"))
        mode = text(labels.get(MODE_LABEL))
        if mode:
            self.modes[mode] = self.modes.get(mode, 0) + 1
        self.nodes_with.update({*node_resources(node)})
        facts = node_facts(node)
        if facts is None:
            self.usage.site_seen(node_site(node))
        else:
            self.usage.node_seen(facts)

    def pod(self, pod: Json) -> None:
        """Take a Pod object, after all nodes."""
        facts = pod_facts(pod)
        if facts.ended or facts.request.kind is RequestKind.NONE:
            return
        if facts.node:
            self.schedulers.add(facts.scheduler)
        bound_pods = BoundPods(self.usage, Reservations(self.usage, self.pods), self.pods)
        bound_pods.count(bound_pods.as_decided(facts))


def pod_reason(pod: Json, events: Json | None, cluster: Cluster) -> str:
    """Why a pod waits that has no node.

    Args:
        pod: the Pod object (decoded JSON).
        events: the list of Events about it; None if it could not be read.
        cluster: all nodes and pods.
    """
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    facts = pod_facts(pod)
    gates = [text(gate.get("name")) for gate in mappings(spec.get("schedulingGates"))]
    foreign = [gate for gate in gates if gate != JOB_GATE]
    if foreign:
        return f"has scheduling gate {words.shown(foreign[0])}, which only the controller that set it removes"
    # No scheduler can place it, so this comes before what a scheduler says about the pod's other resources.
    unknown = _unknown_resource(pod, cluster)
    if unknown:
        return unknown
    said = said_by_scheduler(events)
    if said and not _sees_all_of_claims(pod, facts, cluster):
        return said
    unscheduled = unscheduled_words(status)
    if facts.job is not None and (gates or _asks_for_gpus(facts)):
        return _of_job(facts, unscheduled, cluster)
    reason = _of_requests(pod, facts, cluster)
    if not unscheduled:
        tries = untried(facts.scheduler or STOCK_SCHEDULER, cluster.schedulers)
        return f"{reason}; {tries}" if reason else tries
    return reason or unscheduled


def _asks_for_gpus(facts: PodFacts) -> bool:
    """Whether the pod asks for GPUs in its limits. kube-scheduler places others by themselves, also those of jobs."""
    return facts.request.kind.gives_gpus or bool(facts.request.problem)


def _sees_all_of_claims(pod: Json, facts: PodFacts, cluster: Cluster) -> bool:
    """Whether all was read that keeps a pod with claims. Then an Event has nothing more, and may be an hour old."""
    if _asks_for_gpus(facts) or read_claiming_pod(pod) is None:
        return False
    claims = cluster.claims
    was_read = None not in (claims.published, claims.claims, claims.classes, claims.sites)
    return was_read and claims.has_all_claims


def said_by_scheduler(events: Json | None) -> str:
    """What this project's scheduler has said last on why the pod waits; empty if nothing."""
    said = ("", "")
    for event in mappings(mapping(events).get("items")):
        component = text(mapping(event.get("source")).get("component"))
        is_ours = component == COMPONENT and event.get("reason") in _REASONS
        if is_ours:
            said = max(said, (text(event.get("lastTimestamp")), sentence(event.get("message"))))
    _, message = said
    return message


def _unknown_resource(pod: Json, cluster: Cluster) -> str:
    has_nodes = bool(cluster.usage.nodes or cluster.usage.pods.sites)
    if not has_nodes:
        # The nodes could not be read, or there are none yet.
        return ""
    classes = cluster.claims.classes
    resources = None if classes is None else {device_class.resource for device_class in classes.values()}
    return unknown_resource(pod, cluster.nodes_with, resources, cluster.modes.get("dra", 0))


def _of_job(pod: PodFacts, unscheduled: str, cluster: Cluster) -> str:
    """Why a pod waits that starts together with others: the scheduler has said it, or others are not there."""
    gang = pod.job
    if unscheduled or gang is None:
        return unscheduled
    title = f"{gang.source.noun} {gang.name}"
    if not _asks_for_gpus(pod):
        # Its pods are not counted here.
        return f"{title}: gate {JOB_GATE} keeps its pods until all of them are there"
    members = [other for other in cluster.pods.values() if _is_of(other, pod)]
    count = max(1, len(members))
    wanted = gang.pods or count
    if count < wanted:
        incomplete = f"{title}: {count} of {wanted} pods are there"
        # When the others come, their template has the same mistake.
        is_mistyped = meant_scheduler(pod.scheduler, cluster.schedulers)
        return f"{incomplete}; {untried(pod.scheduler, cluster.schedulers)}" if is_mistyped else incomplete
    return f"{title}: all of its {wanted} pods are there; {untried(pod.scheduler, cluster.schedulers)}"


def _is_of(other: PodFacts, pod: PodFacts) -> bool:
    return other.name.namespace == pod.name.namespace and other.job == pod.job


def _of_requests(pod: Json, facts: PodFacts, cluster: Cluster) -> str:
    claiming = read_claiming_pod(pod)
    served = limit_claims(pod, facts.name, (cluster.claims.classes or {}).values())
    # Without claims of its own, the pod may also be on a node that has whole GPUs without claims.
    needs_claim = claiming is not None and GPU_WHOLE in served
    if not needs_claim:
        served.pop(GPU_WHOLE, None)
    claims = None
    if claiming or served:
        bare = ClaimingPod(facts.name, facts.uid, (), facts.rules)
        claims = claim_reason(claiming or bare, cluster.claims, [*served.values()])
    if claims and claims.text and claims.is_ours:
        return claims.text
    if _asks_for_gpus(facts) and not needs_claim:
        return _of_limits(pod, facts, cluster)
    if claims and claims.is_ours:
        return _room_words(claims.nodes, facts.unscheduled, claims.unchecked)
    return "" if facts.unscheduled else NOT_OURS


def _of_limits(pod: Json, facts: PodFacts, cluster: Cluster) -> str:
    by_claims = _through_class(pod, facts, cluster)
    # With such a class, the nodes in mode dra serve the pod, too.
    modes = cluster.modes if by_claims is None else {}
    reason = share_reason(facts, cluster.usage, modes)
    if not reason:
        return _room_words(nodes_with_room(facts, cluster.usage), facts.unscheduled)
    if by_claims is None:
        return reason
    if not by_claims.text:
        return _room_words(by_claims.nodes, facts.unscheduled, by_claims.unchecked)
    return f"{reason}; on nodes in mode dra it {by_claims.text}"


def _through_class(pod: Json, facts: PodFacts, cluster: Cluster) -> ClaimReason | None:
    """Why a class that serves whole GPUs in limits does not serve the pod; None without such a class."""
    if facts.request.kind is not RequestKind.WHOLE or not cluster.modes.get("dra"):
        return None
    claim = limit_claims(pod, facts.name, (cluster.claims.classes or {}).values()).get(GPU_WHOLE)
    if claim is None:
        return None
    claiming = ClaimingPod(facts.name, facts.uid, (), facts.rules)
    return claim_reason(claiming, cluster.claims, [claim])


def _room_words(nodes: Collection[str], unscheduled: str, unchecked: str = "") -> str:
    """That there is room by now, as far as that is checked here, and what else kube-scheduler says."""
    if not nodes:
        return unscheduled
    if unchecked:
        may_be_free = f"GPUs may be free for it on {words.some(nodes)}; not checked here: {unchecked}"
        return f"{may_be_free}; kube-scheduler says: {unscheduled}" if unscheduled else may_be_free
    text_of_nodes = f"GPUs are free for it on {words.some(nodes)}"
    if unscheduled:
        return f"{text_of_nodes}, so something else keeps it, or it is tried again soon: {unscheduled}"
    return text_of_nodes
