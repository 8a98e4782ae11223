"""Reads the objects that the watches show, and passes them on as the core's values."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpuagent.domain.fleet.agent_pods import NAME, AgentPods
from gpuagent.domain.fleet.node_summary import node_reading
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.scheduling.node_links import BANDWIDTH_KEY, node_links
from gpuscheduler.cluster_api.connection import Json, decoded
from gpuscheduler.cluster_api.pod_reader import PodReader
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.claims.gpu_claims import GpuClaim, read_claim
from gpuscheduler.core.claims.gpu_devices import read_slice
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.defragment.budgets import disruption_budget
from gpuscheduler.core.explain.claim_waits import ClaimWaits
from gpuscheduler.core.gangs.batch_job import read_batch_job
from gpuscheduler.core.gangs.gang_object import GangObject, ObjectKey
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.leader_worker_set import read_leader_worker_set
from gpuscheduler.core.gangs.native_pod_group import read_native_pod_group, read_workload
from gpuscheduler.core.gangs.pod_group import read_pod_group
from gpuscheduler.core.gangs.ray_cluster import read_ray_cluster
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import PodFacts, changed_on_node, is_large_on_node, pod_facts
from gpuscheduler.service import Service

CONFIG_MAPS = "kube-system"
"""Namespace of the ConfigMaps about nodes."""
UNHEALTHY = "unhealthy-gpu-"
"""Before a node's name in the name of the ConfigMap of its unhealthy GPUs."""
REPORT = "-gputopo-report"
"""After a node's name in the name of the ConfigMap of its links."""
_READ: Mapping[ObjectKind, Callable[[Json], GangObject]] = {
    ObjectKind.JOB_SET: read_job_set,
    ObjectKind.LEADER_WORKER_SET: read_leader_worker_set,
    ObjectKind.RAY_CLUSTER: read_ray_cluster,
    ObjectKind.BATCH_JOB: read_batch_job,
    ObjectKind.POD_GROUP: read_pod_group,
    ObjectKind.NATIVE_POD_GROUP: read_native_pod_group,
    ObjectKind.WORKLOAD: read_workload,
}
LARGE_BYTES = 64 * 1024
"""A pod whose text is longer may have so many containers that they are read once. Most texts have 3 to 10 KB."""
CLAIMS_KEY = b'"resourceClaims"'
"""In the text of each pod with claims, and of hardly any other."""
AGENT_NAME = f'"{NAME}"'.encode()
"""In the text of each agent's pod, and of hardly any other."""
_MINOR = re.compile(r"[0-9]{1,9}")
"""A minor number. Python refuses to read a number of thousands of digits."""


class PodFollower:
    """Follows Pod objects."""

    key = "uid"

    def __init__(self, service: Service, claim_waits: ClaimWaits, agents: AgentPods) -> None:
        self._service = service
        self._claim_waits = claim_waits
        self._agents = agents
        self._reader = PodReader()
        self._large: dict[str, PodFacts] = {}

    def seen(self, json_text: bytes) -> None:
        """Take a pod."""
        if AGENT_NAME in json_text:
            self._agents.seen(decoded(json_text))
        is_large = len(json_text) > LARGE_BYTES
        if is_large or CLAIMS_KEY in json_text:
            self._read_whole(decoded(json_text))
        else:
            self._service.pod_seen(self._reader.read(json_text))

    def _read_whole(self, found: Json) -> None:
        """Take a pod. If it is on a node and has many containers, these are read once: it may be changed often."""
        uid = text(mapping(found.get("metadata")).get("uid"))
        former = self._large.get(uid)
        facts = changed_on_node(found, former) if former else pod_facts(found)
        if is_large_on_node(found):
            self._large[uid] = facts
        self._service.pod_seen(facts)
        self._claim_waits.seen(found, time.monotonic())

    def gone(self, key: str) -> None:
        """Forget a pod."""
        self._large.pop(key, None)
        self._agents.gone(key)
        self._claim_waits.gone(key)
        self._service.pod_gone(key)


class NodeFollower:
    """Follows Node objects, with what ConfigMaps add. Of a node without GPUs, only labels and taints count."""

    key = "name"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._unpublished: dict[str, Json] = {}
        self._unhealthy: dict[str, Collection[int]] = {}
        self._reports: dict[str, Mapping[str, Any]] = {}

    def seen(self, found: Json) -> None:
        """Take a node."""
        metadata = mapping(found.get("metadata"))
        name = text(metadata.get("name"))
        facts = node_facts(found, self._unhealthy.get(name, ()))
        if facts is None:
            self.gone(name)
            self._service.site_seen(node_site(found))
            self._read(name, found)
            return
        self._read(name, found)
        if facts.assumed:
            # It is read again when its unhealthy GPUs change.
            self._unpublished[name] = {key: found.get(key) for key in ("metadata", "spec", "status")}
        else:
            self._unpublished.pop(name, None)
        self._service.node_seen(facts)
        self._learn_links(name)

    def gone(self, key: str) -> None:
        """Forget a node."""
        self._unpublished.pop(key, None)
        self._service.core.readings.pop(key, None)
        self._service.node_gone(key)

    def _read(self, name: str, found: Json) -> None:
        """Keep what people read of the node. A node that offers no GPUs now may say why."""
        reading = node_reading(found)
        readings = self._service.core.readings
        # The same value while nothing has changed, so that its row on the page is not written again.
        if reading and readings.get(name) != reading:
            readings[name] = reading

    def unhealthy(self, name: str, minors: Collection[int]) -> None:
        """Take the minor numbers of a node's unhealthy GPUs, which count unless the node publishes its GPUs."""
        self._unhealthy[name] = minors
        node = self._unpublished.get(name)
        if node:
            self.seen(node)

    def report(self, name: str, data: Mapping[str, Any]) -> None:
        """Take the ConfigMap with a node's links; it has no data when it is gone."""
        # Kept until the Node has the hash of the same links: the agent writes the two one after the other.
        self._reports.pop(name, None)
        if BANDWIDTH_KEY in data:
            self._reports[name] = {BANDWIDTH_KEY: data[BANDWIDTH_KEY]}
            self._learn_links(name)

    def _learn_links(self, name: str) -> None:
        """Pass a node's links to the core when the Node and its ConfigMap agree. Equal nodes share one value."""
        core = self._service.core
        node = core.usage.nodes.get(name)
        data = self._reports.get(name)
        if not node or not data:
            return
        mbps = node_links(data, node.facts.gpus)
        if mbps is None:
            return
        del self._reports[name]
        core.links.seen(node.facts.gpus.links, mbps)


class ConfigMapFollower:
    """Follows the ConfigMaps about nodes."""

    key = "name"

    def __init__(self, nodes: NodeFollower) -> None:
        self._nodes = nodes

    def seen(self, found: Json) -> None:
        """Take a ConfigMap."""
        metadata = mapping(found.get("metadata"))
        name = text(metadata.get("name"))
        data = mapping(found.get("data"))
        if name.startswith(UNHEALTHY):
            minors = _minors(text(data.get("gpus")))
            self._nodes.unhealthy(name.removeprefix(UNHEALTHY), minors)
        elif name.endswith(REPORT):
            self._nodes.report(name.removesuffix(REPORT), data)

    def gone(self, key: str) -> None:
        """Forget a ConfigMap. Links that were learned stay."""
        self.seen({"metadata": {"name": key}})


class GangFollower:
    """Follows objects of a kind that says which pods belong together."""

    key = "uid"

    def __init__(self, kind: ObjectKind, service: Service) -> None:
        self._kind = kind
        self._service = service
        self._keys: dict[str, ObjectKey] = {}

    def seen(self, found: Json) -> None:
        """Take an object."""
        known = _READ[self._kind](found)
        self._keys[known.uid] = known.key
        self._service.gang_seen(known)

    def gone(self, key: str) -> None:
        """Forget an object."""
        known = self._keys.pop(key, None)
        if known:
            self._service.gang_gone(known, key)

    def none_left(self) -> None:
        """Forget all objects."""
        for uid in list(self._keys):
            self.gone(uid)

    def readable(self, problem: str) -> None:
        """Take why no objects can be seen; empty if they can."""
        self._service.gangs_readable(self._kind, problem)

    def is_wanted(self) -> bool:
        """Whether pods refer to objects of the kind."""
        return self._service.core.gang_objects.is_referred_to(self._kind)


class BudgetFollower:
    """Follows PodDisruptionBudgets."""

    key = "uid"

    def __init__(self, service: Service) -> None:
        self._budgets = service.core.budgets

    def seen(self, found: Json) -> None:
        """Take a budget."""
        self._budgets.seen(disruption_budget(found))

    def gone(self, key: str) -> None:
        """Forget a budget."""
        self._budgets.gone(key)

    def none_left(self) -> None:
        """Forget all budgets."""
        self._budgets.clear()

    def readable(self, problem: str) -> None:
        """Take why no budgets can be seen; empty if they can."""
        self._budgets.are_read = not problem

    def is_wanted(self) -> bool:
        """Whether pods wait for budgets. None does."""
        return False


class SliceFollower:
    """Follows ResourceSlices.

    Attributes:
        found: set once there is a slice of our driver.
    """

    key = "name"

    def __init__(self, claims: ClaimNodes) -> None:
        self._claims = claims
        self._names: set[str] = set()
        self.found = asyncio.Event()

    def seen(self, found: Json) -> None:
        """Take a slice."""
        facts = read_slice(found)
        if facts:
            self._names.add(facts.name)
            self._claims.slice_seen(facts)
            self.found.set()

    def gone(self, key: str) -> None:
        """Forget a slice."""
        self._names.discard(key)
        self._claims.slice_gone(key)

    def none_left(self) -> None:
        """Forget all slices."""
        for name in list(self._names):
            self.gone(name)

    def readable(self, problem: str) -> None:
        """Without slices, pods with claims are not scored."""

    def is_wanted(self) -> bool:
        """Whether pods wait for slices. None does."""
        return False


class ClaimFollower:
    """Follows ResourceClaims, of which only those for GPUs are kept."""

    key = "uid"

    def __init__(self, claims: ClaimNodes) -> None:
        self._claims = claims
        self._known: dict[str, GpuClaim] = {}

    def seen(self, found: Json) -> None:
        """Take a claim."""
        claim = read_claim(found)
        if claim:
            self._known[claim.uid] = claim
            self._claims.claim_seen(claim)

    def gone(self, key: str) -> None:
        """Forget a claim."""
        claim = self._known.pop(key, None)
        if claim:
            self._claims.claim_gone(claim)

    def none_left(self) -> None:
        """Forget all claims."""
        for uid in list(self._known):
            self.gone(uid)

    def readable(self, problem: str) -> None:
        """Without claims, pods with claims are not scored."""

    def is_wanted(self) -> bool:
        """Whether pods wait for claims. None does."""
        return False


def _minors(listed: str) -> set[int]:
    """Minor numbers with commas between them; what is not a number is left out."""
    numbers = [number.strip() for number in listed.split(",")]
    return {int(number) for number in numbers if _MINOR.fullmatch(number)}
