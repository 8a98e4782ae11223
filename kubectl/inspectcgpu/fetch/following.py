"""`--watch`: watches keep nodes and pods up to date, so that a large cluster is listed only once."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.client import Client
from gpuagent.kube.watch.follow import Follow
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.fetch.agents import Asking
from inspectcgpu.fetch.cluster import (
    NODES,
    NOT_SUCCEEDED,
    PODS,
    OtherSources,
    Wanted,
    by_name,
    facts,
    on_nodes,
    pods_selector,
    read_other_sources,
)
from inspectcgpu.read.gpu_node import GpuNode
from inspectcgpu.read.gpu_pod import GpuPod, read_pod

T = TypeVar("T")
Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

OTHERS_EVERY_S, REFRESH_S = 10.0, 30.0
"""Shortest and longest time between two queries of agents and ConfigMaps."""


class Collection(Generic[T]):
    """The current objects of one collection, each mapped by `read`; objects that it maps to None are left out."""

    def __init__(self, what: str, read: Callable[[Json], T | None], updated: threading.Event) -> None:
        self._what = what
        self._read = read
        self._updated = updated
        self._lock = threading.Lock()
        self._known: dict[Key, T] = {}
        self._problem = ""
        self.listed_once = threading.Event()

    # Follow calls these methods

    def read(self, stored: Json) -> tuple[Key, T | None]:
        return _key(stored), self._read(stored)

    def listed(self, items: Sequence[tuple[Key, T | None]]) -> None:
        with self._lock:
            self._known = {key: kept for key, kept in items if kept is not None}
            self._problem = ""
        self.listed_once.set()
        self._updated.set()

    def changed(self, kind: str, item: tuple[Key, T | None]) -> None:
        key, kept = item
        with self._lock:
            before = self._known.pop(key, None)
            if kept is not None and kind != "DELETED":
                self._known[key] = kept
            is_same = before == self._known.get(key)
        # Kubelets rewrite each Node every few minutes or more often.
        if not is_same:
            self._updated.set()

    def failed(self, reason: str) -> None:
        with self._lock:
            self._problem = f"{self._what} cannot be followed, and are shown as they were last seen: {reason}"
        self._updated.set()

    # Properties

    def known(self) -> tuple[T, ...]:
        with self._lock:
            return tuple(self._known.values())

    @property
    def problem(self) -> str:
        """The reason why the objects are not up to date; "" while they are."""
        with self._lock:
            return self._problem


def _key(stored: Mapping[str, Any]) -> Key:
    meta = mapping(stored.get("metadata"))
    return text(meta.get("namespace")), text(meta.get("name"))


class Following:
    """Follows a cluster from daemon threads until it is stopped.

    Args:
        client: the API server's.
        wanted: which nodes to show.
        asking: how agents are queried; None for never.
        usage: query the usage of containers.
    """

    def __init__(
        self,
        client: Client,
        wanted: Wanted,
        asking: Asking | None,
        *,
        usage: bool,
    ) -> None:
        self._client = client
        self._asking = asking
        self._usage = usage
        self._wanted = wanted
        self._names = set(wanted.names)
        self._others: OtherSources | None = None
        self._others_at = 0.0
        self._pods_then: Mapping[PodName, GpuPod] = {}
        self._behind = False
        self.updated = threading.Event()
        self._nodes = Collection[GpuNode]("nodes", self._node, self.updated)
        self._pods = Collection[GpuPod]("pods", self._pod, self.updated)
        # One node and its pods can be selected by the API server; several cannot.
        only_node = wanted.names[0] if len(self._names) == 1 else ""
        select_node = f"metadata.name={only_node}" if only_node else ""
        select_pods = pods_selector(only_node) if only_node else NOT_SUCCEEDED
        self._follows: tuple[Follow[Any], ...] = (
            Follow(client, NODES, select_node, self._nodes, labels=wanted.labels),
            Follow(client, PODS, select_pods, self._pods),
        )
        self._threads = [threading.Thread(target=follow.run, daemon=True) for follow in self._follows]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns soon; a thread in a call to a silent server ends with the process."""
        for follow in self._follows:
            follow.stop()
        for thread in self._threads:
            thread.join(1.0)

    @property
    def complete(self) -> bool:
        """Nodes and pods were listed once."""
        return self._nodes.listed_once.is_set() and self._pods.listed_once.is_set()

    @property
    def problems(self) -> list[str]:
        return [problem for problem in (self._nodes.problem, self._pods.problem) if problem]

    @property
    def good_for_s(self) -> float:
        """How long the last facts are valid without a change: shorter if pods changed since agents were queried."""
        return max(0.0, self._others_at + OTHERS_EVERY_S - time.monotonic()) if self._behind else REFRESH_S

    def facts(self) -> ClusterFacts:
        """The facts as of now."""
        nodes = by_name(self._nodes.known())
        pods = self._known_pods(nodes)
        problems = self.problems
        others = self._others
        # While nodes or pods cannot be followed, agents would be asked about what was long ago.
        are_outdated = time.monotonic() - self._others_at >= OTHERS_EVERY_S and not problems
        if others is None or are_outdated:
            others = self._read_others(nodes, pods)
        changed = [pod.name for pod in pods if self._pods_then.get(pod.name) != pod]
        # Then agents are asked again as soon as they may be.
        self._behind = bool(changed) and not problems
        return facts(nodes, pods, others, problems, frozenset(changed))

    def _read_others(self, nodes: Sequence[GpuNode], pods: Sequence[GpuPod]) -> OtherSources:
        """Ask agents, and keep the answers with the pods as they were at that time."""
        others = read_other_sources(self._client, nodes, pods, self._asking, usage=self._usage)
        self._others = others
        self._others_at = time.monotonic()
        self._pods_then = {pod.name: pod for pod in pods}
        return others

    def _known_pods(self, nodes: Sequence[GpuNode]) -> list[GpuPod]:
        pods: Iterable[GpuPod] = self._pods.known()
        if self._wanted.labels:
            # The API server selects nodes by label, but not their pods.
            pods = on_nodes(pods, nodes)
        return sorted(pods, key=lambda pod: pod.name)

    def _node(self, node: Json) -> GpuNode | None:
        is_wanted = not self._names or _key(node)[1] in self._names
        return self._wanted.read(node) if is_wanted else None

    def _pod(self, document: Json) -> GpuPod | None:
        pod = read_pod(document)
        if pod is None:
            return None
        is_wanted = not self._names or pod.node in self._names
        return pod if is_wanted else None
