"""A model of a stock kube-scheduler with an extender: its informers, its queue, its calls, and its lease.

It asks the extender of its own pod. Its view of the cluster is behind the API server, and it counts the pods that it
has assumed.
"""

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from simworld.parts.amounts import ENDED, fits
from simworld.parts.leader_election import LeaderElection
from simworld.runtime.event_loop import Delays
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import kernel
from simworld.runtime.threads import Event
from standin.api.objects import Change, Json
from standin.api.refusal import Refusal

NAME = "gpu-scheduler"
BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 2.0
"""As in the configuration that the chart installs."""
FLUSH_S = 300.0
"""How long a pod without a node waits at most until it is tried again without an event."""
RECONNECT_S = 1.0

Call = Callable[[str, Json], Any]
"""Calls the extender: the verb and the body; the answer. Raises OSError."""


class KubeScheduler:
    """One process of it. `run` returns when it has lost its lease.

    Args:
        identity: of its lease.
        api: its API server.
        chance: of its delays.
        call: calls the extender.
        reach: called before each request to the API server; whether it gets an answer. A stalled process waits in it.
        reserved: called when the extender has named a node for a pod.
    """

    def __init__(  # noqa: PLR0913 (what it is connected to)
        self,
        identity: str,
        api: SimulatedApi,
        chance: random.Random,
        call: Call,
        reach: Callable[[], bool],
        reserved: Callable[[], None],
    ) -> None:
        self._api = api
        self._objects = api.objects
        self._chance = chance
        self._call = call
        self._reach = reach
        self._reserved = reserved
        self._election = LeaderElection(identity, api, chance, reach)
        self._lag = Delays(chance, 0.01, 3.0, 0.02)
        self._changed = Event()
        self._pods: dict[str, Json] = {}
        self._nodes: dict[str, Json] = {}
        self._assumed: dict[str, Json] = {}
        self._since: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._without_node: dict[str, float] = {}
        """Pods that wait for an event, and since when."""
        self._in_cycle = ""
        """UID of the pod whose cycle runs."""
        self._is_event_in_cycle = False
        """Whether an event has come during the cycle that may make its pod schedulable."""

    def run(self) -> None:
        """Follow the cluster, wait for the lease, and schedule until it is lost."""
        while not self._reach():
            kernel().sleep(RECONNECT_S)
        version = self._list()
        kernel().spawn(partial(self._follow, version), f"{NAME} informers")
        self._election.acquire()
        kernel().spawn(self._schedule_all, f"{NAME} queue")
        self._election.keep()

    # -- informers ------------------------------------------------------------------------------------------------

    def _list(self) -> int:
        pods, version = self._objects.all("pods")
        nodes, _ = self._objects.all("nodes")
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        there = {pod["metadata"]["uid"] for pod in pods}
        # It has assumed some of them, whose last state it has not seen.
        for known in list(self._pods.values()):
            if known["metadata"]["uid"] not in there:
                self._drop_pod(known)
        for pod in pods:
            self._see_pod(pod)
        self._move_all()
        return version

    def _follow(self, version: int) -> None:
        while True:
            with self._objects.updated:
                if self._objects.version == version:
                    self._objects.updated.wait(5.0)
            kernel().sleep(self._lag.draw())
            while self._api.silent or not self._reach():
                kernel().sleep(RECONNECT_S)
            try:
                self._objects.check(version)
            except Refusal:
                version = self._list()
                continue
            changes = self._objects.changes(version)
            version = self._objects.version
            for change in changes:
                self._take(change)

    def _take(self, change: Change) -> None:
        resource, _, name = change.key
        if resource == "nodes":
            if change.after is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = change.after
            self._move_all()
        if resource != "pods":
            return
        if change.before is not None and change.after is None:
            self._drop_pod(change.before)
        elif change.after is not None:
            self._see_pod(change.after)

    def _see_pod(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        before = self._pods.get(uid)
        self._pods[uid] = pod
        self._since.setdefault(uid, kernel().now)
        if pod["spec"].get("nodeName"):
            self._assumed.pop(uid, None)
            self._move_all()
        elif before is not None and _wakes(before, pod):
            self._without_node.pop(uid, None)
            self._is_event_in_cycle = self._is_event_in_cycle or uid == self._in_cycle
            self._changed.set()
        else:
            self._changed.set()

    def _drop_pod(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._pods.pop(uid, None)
        self._assumed.pop(uid, None)
        if pod["spec"].get("nodeName"):
            self._move_all()

    def _move_all(self) -> None:
        """Have the pods that wait for an event be tried again after their back-off, with the one whose cycle runs."""
        self._without_node.clear()
        self._is_event_in_cycle = True
        self._changed.set()

    # -- the queue ------------------------------------------------------------------------------------------------

    def _schedule_all(self) -> None:
        while True:
            pod = self._next_pod()
            if pod is None:
                self._changed.clear()
                self._changed.wait(self._pause_s())
                continue
            # Also a process that stood still goes on here, before it notices that it no longer leads.
            self._reach()
            self._schedule(pod)

    def _next_pod(self) -> Json | None:
        waiting = [pod for pod in self._pods.values() if self._is_active(pod)]
        return min(waiting, key=self._rank, default=None)

    def _rank(self, pod: Json) -> tuple[int, float]:
        uid = pod["metadata"]["uid"]
        return -pod["spec"].get("priority", 0), self._since[uid]

    def _is_active(self, pod: Json) -> bool:
        uid = pod["metadata"]["uid"]
        if not _is_ours(pod) or uid in self._assumed:
            return False
        if uid in self._without_node:
            return False
        return kernel().now >= self._not_before.get(uid, 0.0)

    def _pause_s(self) -> float:
        later = [due for uid, due in self._not_before.items() if uid in self._pods and due > kernel().now]
        return min(later, default=kernel().now + 60.0) - kernel().now

    def _back_off(self, uid: str, *, needs_event: bool = False) -> None:
        tries = self._tries.get(uid, 0)
        self._tries[uid] = tries + 1
        now = kernel().now
        self._not_before[uid] = now + min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**tries)
        if needs_event:
            self._without_node[uid] = now
            kernel().spawn(partial(self._flush, uid, now), f"{NAME} flush")

    def _flush(self, uid: str, since: float) -> None:
        """Have a pod be tried again that no event has woken since then."""
        kernel().sleep(FLUSH_S)
        if self._without_node.get(uid) != since:
            return
        del self._without_node[uid]
        self._changed.set()

    # -- one pod --------------------------------------------------------------------------------------------------

    def _schedule(self, pod: Json) -> None:
        kernel().sleep(self._chance.random() * 0.005)
        uid = pod["metadata"]["uid"]
        self._in_cycle = uid
        self._is_event_in_cycle = False
        names = self._roomy(pod)
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        answers: list[str] = []
        failed = False
        if nominated in names:
            answers, failed = self._filtered(pod, [nominated])
        if names and not answers and not failed:
            answers, failed = self._filtered(pod, names)
        if not answers:
            # An event that has come meanwhile is not lost: kube-scheduler keeps it until the cycle ends.
            self._back_off(uid, needs_event=not (failed or self._is_event_in_cycle))
            return
        node = self._best(pod, answers)
        self._assumed[uid] = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        self._reserved()
        kernel().spawn(partial(self._bind, pod, node), f"{NAME} bind")

    def _roomy(self, pod: Json) -> list[str]:
        """Nodes whose amounts have room in the view of this process."""
        pods = [*(known for uid, known in self._pods.items() if uid not in self._assumed), *self._assumed.values()]
        return [name for name, node in self._nodes.items() if fits(pod, node, pods)]

    def _filtered(self, pod: Json, names: list[str]) -> tuple[list[str], bool]:
        """Nodes that the extender lets pass, and whether the call failed."""
        try:
            answer = self._call("filter", {"Pod": pod, "NodeNames": names})
        except OSError:
            return [], True
        if answer.get("Error"):
            return [], True
        return list(answer.get("NodeNames") or ()), False

    def _best(self, pod: Json, names: list[str]) -> str:
        if len(names) == 1:
            return names[0]
        try:
            scores: list[Mapping[str, Any]] = self._call("prioritize", {"Pod": pod, "NodeNames": names}) or []
        except OSError:
            scores = []
        of_node = {score["Host"]: score["Score"] for score in scores}
        return max(names, key=lambda name: of_node.get(name, 0))

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": uid, "Node": node}
        try:
            why = self._call("bind", body).get("Error") or ""
        except OSError:
            why = "no answer"
        if why:
            self._assumed.pop(uid, None)
            self._back_off(uid)
            self._move_all()


def _is_ours(pod: Json) -> bool:
    spec = pod["spec"]
    phase = (pod.get("status") or {}).get("phase")
    is_waiting = not spec.get("nodeName") and not spec.get("schedulingGates")
    is_there = "deletionTimestamp" not in pod["metadata"] and phase not in ENDED
    return is_waiting and is_there and spec.get("schedulerName") == NAME


def _wakes(before: Json, after: Json) -> bool:
    """Whether a change of a waiting pod may make it schedulable: any but one of its status."""
    return _essence(before) != _essence(after)


def _essence(pod: Json) -> str:
    metadata = {key: value for key, value in pod["metadata"].items() if key not in {"resourceVersion", "managedFields"}}
    return json.dumps([metadata, pod["spec"]])
