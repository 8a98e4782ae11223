"""All nodes with GPUs, and the pods that use them."""

from collections.abc import Iterator
from dataclasses import replace

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, Used
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import NodeUsage

MIN_FEASIBLE_NODES = 100
"""kube-scheduler's `minFeasibleNodesToFind`. It looks at all nodes of a cluster up to this size. Among more nodes
it may stop once so many accept the pod. So there, the pod is nominated for the node that is chosen here."""


class ClusterUsage:
    """The nodes by name. A use on a node that was not seen yet is kept, and counts as soon as the node is seen.

    Args:
        min_feasible: of kube-scheduler, see `MIN_FEASIBLE_NODES`.

    Attributes:
        min_feasible: as above.
        nodes: by name.
        changed: names of the nodes that changed since a reader emptied it.
        version: how often anything changed.
        frees: how often units may have become free. Readers compare it with what it was.
        pods: on all nodes, with GPUs or without.
        pods_matter: a job waits that may fit when another pod comes. Its planning sets this.
    """

    def __init__(self, min_feasible: int = MIN_FEASIBLE_NODES) -> None:
        self.min_feasible = min_feasible
        self.nodes: dict[str, NodeUsage] = {}
        self.changed: set[str] = set()
        self.frees = 0
        self.version = 0
        self.pods = Neighborhood()
        self.pods_matter = False
        self._alone: dict[str, tuple[str, ...]] = {}
        self._units: Amounts | None = None
        self._whole = 0
        self._uses: dict[str, dict[str, Used | GpuRequest]] = {}
        self._on: dict[str, tuple[str, ...]] = {}
        self._used: dict[str, Resources] = {}

    def is_large(self) -> bool:
        """Whether kube-scheduler may look at a part of the nodes only."""
        return len(self.nodes) > self.min_feasible

    def node_seen(self, facts: NodeFacts) -> None:
        """Add a node, or take it as it is now."""
        self.pods.sites[facts.name] = facts.site
        node = self.nodes.get(facts.name)
        if node is None:
            self.nodes[facts.name] = self._new(facts)
        # Most updates of a Node change nothing that counts here.
        elif node.facts == facts:
            return
        else:
            node.refresh(facts)
        self._units = None
        self._note(facts.name)
        self.frees += 1

    def _new(self, facts: NodeFacts) -> NodeUsage:
        """A node that was not seen before, with the uses that were."""
        node = NodeUsage(facts)
        node.used = self._used.get(facts.name, NO_RESOURCES)
        for uid, use in self._uses.get(facts.name, {}).items():
            node.use(uid, use)
        return node

    def site_seen(self, site: NodeSite) -> None:
        """Take the labels and taints of a node without GPUs: pods are spread over such nodes, too."""
        if self.pods.sites.get(site.name) != site:
            self.pods.sites[site.name] = site
            self.frees += 1

    def node_gone(self, name: str) -> None:
        """Forget a node. Its users stay until their pods are gone."""
        former_site = self.pods.sites.pop(name, None)
        # A node that is deleted and created again has its pods still.
        if self.nodes.pop(name, None) is not None:
            self._units = None
            self._note(name)
        if former_site is not None:
            # Pods are no longer spread over it, and jobs for which it was kept need another one.
            self.frees += 1

    def use(self, uid: str, name: str, use: Used | GpuRequest) -> None:
        """Count a pod on a node: on these GPUs, or on all where only its request is known."""
        uses = self._uses.setdefault(name, {})
        former = uses.get(uid)
        if former == use:
            return
        if former is not None:
            # It may have been on other GPUs, which are free now.
            self.frees += 1
        uses[uid] = use
        names = self._on.get(uid, ())
        if name not in names:
            self._on[uid] = (*names, name)
        node = self.nodes.get(name)
        if node:
            node.use(uid, use)
            self._note(name)

    def release(self, uid: str, name: str | None = None) -> None:
        """Count a pod no longer, neither on GPUs nor for what else it asks for: on one node, or on all."""
        _, occupied = self.pods.of(uid)
        everywhere = dict.fromkeys((*self._on.get(uid, ()), *occupied))
        released = everywhere if name is None else [name]
        for other in released:
            used_gpus = self._release_gpus(other, uid)
            occupied_it = self._vacate(other, uid)
            if used_gpus or occupied_it:
                self.frees += 1
        if not self._on.get(uid):
            self._on.pop(uid, None)

    def _release_gpus(self, name: str, uid: str) -> bool:
        """Count a pod on the GPUs of one node no longer; whether it counted."""
        former = self._uses.get(name, {}).pop(uid, None)
        if former is None:
            return False
        others = [other for other in self._on[uid] if other != name]
        self._on[uid] = tuple(others)
        node = self.nodes.get(name)
        if node:
            node.release(uid)
            self._note(name)
        return True

    def occupy(self, uid: str, name: str, occupant: Occupant) -> None:
        """Count a pod on a node for what it asks for besides GPUs, and for what it is to other pods."""
        former, names = self.pods.of(uid)
        added = () if name in names else (name,)
        # Pods of one template share a value.
        has_changed = bool(names) and former is not occupant and former != occupant
        if has_changed:
            # The author may change amounts and labels while the pod runs.
            for other in names:
                self._vacate(other, uid)
            added = (*names, *added)
            names = ()
        if not added:
            return
        self._note_pods(former, occupant, has_changed=has_changed)
        on = (*names, *added)
        # Nearly all pods are on one node only, and share the tuple with the others there.
        if len(on) == 1:
            on = self._alone.setdefault(on[0], on)
        self.pods.put(uid, (occupant, on))
        for other in added:
            self._change_used(other, occupant.requests, 1)

    def _note_pods(self, former: Occupant, occupant: Occupant, *, has_changed: bool) -> None:
        """Note that a job may fit now: it may want to be near this pod, or the pod asks for less than before."""
        # A pod that begins to end asks for as much as before.
        frees_some = has_changed and replace(occupant, ending=former.ending) != former
        if frees_some or self.pods_matter:
            self.pods_matter = False
            self.frees += 1

    def _vacate(self, name: str, uid: str) -> bool:
        """Count what a pod asks for on one node no longer; whether it counted."""
        occupant, names = self.pods.of(uid)
        if name not in names:
            return False
        kept = tuple(other for other in names if other != name)
        self.pods.put(uid, (occupant, kept))
        self._change_used(name, occupant.requests, -1)
        return True

    def _change_used(self, name: str, requests: Resources, times: int) -> None:
        before = self._used.get(name, NO_RESOURCES)
        used = before.plus(requests, times)
        self._used[name] = used
        if used == NO_RESOURCES:
            del self._used[name]
        node = self.nodes.get(name)
        if node is None:
            return
        node.used = used
        self.version += 1
        if used.cpu != before.cpu:
            # Costs depend on CPU, and on no other resource.
            self.changed.add(name)

    def in_all(self) -> tuple[Amounts, int]:
        """Units, and number of whole GPUs, of all nodes together, in use or not."""
        if self._units is None:
            gpus: list[NodeGpu] = []
            for node in self.nodes.values():
                of_node = node.facts.gpus.gpus
                gpus += [gpu for gpu in of_node if gpu.usable]
            memory = sum(gpu.memory for gpu in gpus)
            core = sum(gpu.core for gpu in gpus)
            self._units = Amounts(memory, core)
            self._whole = sum(gpu.whole for gpu in gpus)
        return self._units, self._whole

    def _note(self, name: str) -> None:
        self.version += 1
        self.changed.add(name)

    def nodes_of(self, uid: str) -> Iterator[str]:
        """Names of the nodes on which the pod counts."""
        yield from self._on.get(uid, ())
