"""gpuscheduler's own core, and around it what a kube-scheduler with that extender does.

The core is the product's, and so are the readers of objects. Watches bring changes late, each kind at its own pace.
Either both end together, or the extender alone, as a container that crashes. It loses all that it knew, and what was on
its way to it or from it. The next one reads every kind of object again. It answers when it has read all.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from gpuagent.domain.sharing.mode import JOB_LABEL
from gpuscheduler.core.calls import (
    Action,
    BindOutcome,
    BindRefused,
    BindWait,
    BindWrite,
    CommitJob,
    Nominate,
    Nudge,
    Ungate,
)
from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, JOB_GATE, pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.strand import Strand
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.ahead import AheadLimits
from gpuscheduler.followers import ConfigMapFollower, NodeFollower
from simworld.history import History
from simworld.parts.named_nodes import nodes_to_name
from simworld.parts.placements import Placements
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, kernel
from simworld.runtime.threads import Event, wall_clock
from standin.api.objects import Change, Json
from standin.api.podrules import bound
from standin.api.refusal import Refusal

NAME = "gpu-scheduler"
USUAL_LAG_S = 0.01
LONG_LAG_S = 3.0
LONG_LAG_SHARE = 0.02
"""How often a watch is behind by up to `LONG_LAG_S`."""
TICK_S = 0.05
BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 10.0
"""kube-scheduler's own: the first wait of a pod that was refused, and the longest."""
WRITE_S = 0.02
NO_NODE = "0/1 nodes are available: a plugin refuses the pod."
RESOURCES = ("nodes", "configmaps", "pods")
"""Kinds of objects that the core follows."""
LIST_S = 1.0
"""Longest time in which an extender that starts again lists the objects of one kind."""


class GpuScheduler:
    """One replica that leads; `kill` and `start` make the next one.

    `strike` has the extender alone end at a moment that matters.

    Args:
        api: of the cluster.
        history: takes what happens.
        placements: takes what it binds.
        names_a_part: whether kube-scheduler names a part of the nodes, see `nodes_to_name`. Then two nodes are a large
            cluster to the product: a hundred would take too long to simulate.
        decided: called with the core and `asked` after each event that the core took, and after each call.

    Attributes:
        core: the product's decisions.
        asked: UIDs of the pods about which kube-scheduler has asked, in this process or in a former one.
        cycle_s: how long kube-scheduler takes for a pod at most, as among thousands of nodes. With 0, the cluster is
            small, and gpuscheduler decides nothing before it is asked. It counts when the scheduler starts.
        volumes_s: how long the volumes of a pod take at most, which are made before it is bound.
    """

    def __init__(
        self,
        api: SimulatedApi,
        history: History,
        placements: Placements,
        *,
        names_a_part: bool = False,
        decided: Callable[[Scheduling, set[str]], None],
    ) -> None:
        self._api = api
        self._objects = api.objects
        self._history = history
        self._placements = placements
        self._began_at = 0.0
        self._kube_scheduler = Process(NAME, alive=False)
        self._extender = Process(f"{NAME} extender", alive=False)
        self._kubelet = Process(f"{NAME} kubelet")
        self._strikes: list[_Strike] = []
        self._refusals_to_come = 0
        self._to_forget: list[bool] = []
        """For each pod that kube-scheduler is to forget, whether it is one of a job."""
        self._is_synced = False
        self.core: Scheduling
        self.asked: set[str] = set()
        self.volumes_s = 0.0
        self.cycle_s = 0.0
        self._decided = decided
        self._chance_of_nodes = random.Random("named nodes") if names_a_part else None
        self._min_feasible = 1 if names_a_part else MIN_FEASIBLE_NODES

    @property
    def living_core(self) -> Scheduling | None:
        """The core of the extender that runs, once it has read the cluster; otherwise None."""
        return self.core if self._is_answering else None

    @property
    def _is_answering(self) -> bool:
        return self._extender.alive and self._is_synced

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what does not run. What was to strike the extender comes no more."""
        self._strikes.clear()
        if self._kube_scheduler.alive:
            self._start_extender_again()
            return
        self._kube_scheduler = Process(NAME)
        kernel().spawn(self._run, NAME, self._kube_scheduler)

    def kill(self) -> None:
        """End both."""
        kernel().end(self._extender)
        kernel().end(self._kube_scheduler)

    def strike(self, point: str, countdown: int, away_s: float) -> None:
        """Have the extender end for so long when something has happened so often, see `scenario.POINTS`."""
        self._strikes.append(_Strike(point, countdown, away_s))

    def forget_next(self, *, is_of_job: bool) -> None:
        """Have kube-scheduler never come back to the next pod for which the extender has a node.

        So it is if the pod's volume is deleted at that moment, for example: kube-scheduler finds no node for it from
        then on, and the extender is not told.
        """
        self._to_forget.append(is_of_job)

    def refuse_nominated(self) -> None:
        """Have kube-scheduler find no node for the next nominated pod that it tries, by a plugin of its own.

        If the pod may evict no others (`preemptionPolicy: Never`), it stays nominated then.
        """
        self._refusals_to_come += 1

    def _is_refused_now(self, pod: Json) -> bool:
        is_nominated = bool((pod.get("status") or {}).get("nominatedNodeName"))
        if not (is_nominated and self._refusals_to_come):
            return False
        self._refusals_to_come -= 1
        metadata = pod["metadata"]
        uid = metadata["uid"]
        self._history.forgotten.add(uid)
        self._history.note("kube-scheduler", f"has a reason of its own against {self._history.name(uid)}")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE}
        status = {"status": {"conditions": [condition]}, "metadata": {"uid": uid}}
        self._patch(metadata["namespace"], metadata["name"], status, "status")
        return True

    def _is_forgotten_now(self, pod: Json) -> bool:
        is_of_job = JOB_LABEL in (pod["metadata"].get("labels") or {})
        if is_of_job not in self._to_forget:
            return False
        self._to_forget.remove(is_of_job)
        uid = pod["metadata"]["uid"]
        self._history.forgotten.add(uid)
        self._history.note("kube-scheduler", f"does not come back to {self._history.name(uid)}")
        return True

    def _happened(self, point: str) -> None:
        """Let the extender end if it was to end now. Then a task of its own does not come back from this call."""
        for strike in list(self._strikes):
            if strike.point != point:
                continue
            strike.countdown -= 1
            if strike.countdown <= 0:
                self._strikes.remove(strike)
                self._crash_extender(point, strike.away_s)
                return

    def _crash_extender(self, point: str, away_s: float) -> None:
        self._history.note(NAME, f"{point}: its extender is killed, for {away_s:g} s")

        def start_again() -> None:
            kernel().sleep(away_s)
            self._start_extender_again()

        kernel().spawn(start_again, "kubelet restarts the extender", self._kubelet)
        kernel().end(self._extender)

    def _run(self) -> None:
        self._changed = Event()
        self._binding: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._make_extender()
        # Both have started together, and the extender has read everything at one moment.
        with self._objects.updated:
            version = self._objects.version
            self._began_at = kernel().now
            for resource in RESOURCES:
                self._read(resource)
        self._synced()
        for resource in RESOURCES:
            self._spawn(partial(self._watch, resource, version), resource)
        self._spawn(self._tick, "tick")
        self._schedule_all()

    def _start_extender_again(self) -> None:
        """Start the extender beside a kube-scheduler that runs on, unless it runs or kube-scheduler is gone, too."""
        if self._extender.alive or not self._kube_scheduler.alive:
            return
        self._make_extender()
        self._spawn(self._run_extender, "start")

    def _make_extender(self) -> None:
        """A new process, which knows nothing."""
        self._extender = Process(f"{NAME} extender")
        self._extender.at_end.append(self._fail_calls)
        self._is_synced = False
        mix = Mix()
        # Otherwise it would take more than 500 nodes.
        ahead = AheadLimits(nodes=0) if self.cycle_s else None
        min_feasible = 0 if self.cycle_s else self._min_feasible
        self.core = Scheduling(Strand(mix), mix, [NAME], ahead=ahead, min_feasible=min_feasible)
        self._due = Event()
        service: Any = SimpleNamespace(
            core=self.core,
            node_seen=self.core.node_seen,
            node_gone=self.core.node_gone,
            site_seen=self.core.site_seen,
        )
        self._nodes = NodeFollower(service)
        self._config_maps = ConfigMapFollower(self._nodes)

    def _run_extender(self) -> None:
        """List each kind at a moment of its own and follow it from there, as the product does."""
        self._began_at = kernel().now
        for resource in kernel().chance.sample(RESOURCES, len(RESOURCES)):
            kernel().sleep(kernel().chance.random() * LIST_S)
            while self._api.is_away:
                kernel().sleep(BACK_OFF_S)
            with self._objects.updated:
                version = self._objects.version
                self._read(resource)
            self._spawn(partial(self._watch, resource, version), resource)
        self._synced()
        self._spawn(self._tick, "tick")
        self._settle()

    def _synced(self) -> None:
        self.core.synced(kernel().now)
        self._is_synced = True

    def _fail_calls(self) -> None:
        """Kube-scheduler's calls of an extender that has ended fail, and it tries the pods again later."""
        for uid in self._binding:
            self._back_off(uid)
        self._binding.clear()

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        """Have the extender do something beside everything else."""
        kernel().spawn(work, f"{NAME} {name}", self._extender)

    # -- watches --------------------------------------------------------------------------------------------------

    def _read(self, resource: str) -> None:
        for stored in self._objects.peek(resource):
            self._seen(resource, stored)

    def _watch(self, resource: str, version: int) -> None:
        while True:
            with self._objects.updated:
                if self._objects.version == version:
                    self._objects.updated.wait(5.0)
                changes = self._objects.changes(version)
                version = self._objects.version
            chance = kernel().chance
            most_s = LONG_LAG_S if chance.random() < LONG_LAG_SHARE else USUAL_LAG_S
            kernel().sleep(chance.random() * most_s)
            while self._api.is_away:
                kernel().sleep(BACK_OFF_S)
            for change in changes:
                if change.key[0] == resource:
                    self._take(change)
            self._settle()

    def _take(self, change: Change) -> None:
        resource = change.key[0]
        if change.after is not None:
            self._seen(resource, change.after)
        elif resource == "pods" and change.before is not None:
            self.core.pod_gone(change.before["metadata"]["uid"], kernel().now)
        elif resource == "nodes":
            self._nodes.gone(change.key[2])

    def _seen(self, resource: str, found: Json) -> None:
        match resource:
            case "nodes":
                self._nodes.seen(found)
            case "configmaps":
                self._config_maps.seen(found)
            case _:
                self.core.pod_seen(pod_facts(found), kernel().now)

    def _tick(self) -> None:
        while True:
            due = self.core.next_due(kernel().now)
            left_s = 5.0 if due is None else due - kernel().now
            if left_s > 0:
                self._due.clear()
                self._due.wait(left_s)
                continue
            self.core.tick(kernel().now)
            self._settle()
            kernel().sleep(TICK_S)

    # -- kube-scheduler -------------------------------------------------------------------------------------------

    def _schedule_all(self) -> None:
        while True:
            waiting = [pod for pod in self._objects.peek("pods") if self._is_due(pod)]
            if self._api.is_away or not waiting:
                self._changed.clear()
                self._changed.wait(BACK_OFF_S)
                continue
            for pod in waiting:
                if not self.cycle_s:
                    self._schedule(pod)
                    continue
                kernel().sleep(kernel().chance.random() * self.cycle_s)
                current = self._current(pod)
                if current is not None and self._is_due(current):
                    self._schedule(current)

    def _current(self, pod: Json) -> Json | None:
        """A pod as it is now; None if it is gone."""
        metadata = pod["metadata"]
        try:
            current = self._objects.get(("pods", metadata["namespace"], metadata["name"]))
        except Refusal:
            return None
        return current if current["metadata"]["uid"] == metadata["uid"] else None

    def _is_due(self, pod: Json) -> bool:
        spec = pod["spec"]
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if spec.get("schedulerName") != NAME:
            return False
        if spec.get("nodeName") or spec.get("schedulingGates"):
            return False
        if "deletionTimestamp" in metadata or uid in self._binding:
            return False
        if uid in self._history.forgotten:
            return False
        return kernel().now >= self._not_before.get(uid, 0.0)

    def _schedule(self, pod: Json) -> None:
        kernel().sleep(kernel().chance.random() * 0.005)
        meta = pod["metadata"]
        uid = meta["uid"]
        if self._is_refused_now(pod):
            return
        node = self._node_for(pod)
        if not node:
            self._clear_nomination(pod)
            self._back_off(uid)
            return
        if self._is_forgotten_now(pod):
            return
        self._binding.add(uid)
        bind = partial(self._bind, meta["namespace"], meta["name"], uid, node)
        self._spawn(bind, "bind")

    def _clear_nomination(self, pod: Json) -> None:
        """Kube-scheduler ends the nomination of a pod for which it finds no node, so that others may have the room."""
        if (pod.get("status") or {}).get("nominatedNodeName"):
            metadata = pod["metadata"]
            status = {"status": {"nominatedNodeName": None}, "metadata": {"uid": metadata["uid"]}}
            self._patch(metadata["namespace"], metadata["name"], status, "status")

    def _node_for(self, pod: Json) -> str:
        """The node that the extender answers.

        Empty without any, also if no node has room so that it is not asked, or if the call fails.
        """
        calls = nodes_to_name(pod, self._objects.peek("nodes"), self._objects.peek("pods"), self._chance_of_nodes)
        for names in calls:
            if not names or not self._is_answering:
                continue
            self.asked.add(pod["metadata"]["uid"])
            answer = self.core.filter(pod_facts(pod), names, kernel().now)
            self._settle()
            if answer.nodes:
                self._happened("reserved")
                # The answer of an extender that has just ended is lost.
                return answer.nodes[0] if self._is_answering else ""
        return ""

    def _back_off(self, uid: str) -> None:
        """Have a pod that was refused wait, each time for longer."""
        tries = self._tries.get(uid, 0)
        self._tries[uid] = tries + 1
        self._not_before[uid] = kernel().now + min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**tries)

    def _bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        if self.volumes_s:
            kernel().sleep(kernel().chance.random() * self.volumes_s)
        answer = self.core.bind(uid, node, kernel().now, int(wall_clock() * 1e9))
        self._settle()
        while isinstance(answer, BindWait):
            if kernel().now >= answer.until:
                answer = BindRefused("the others did not come")
                break
            kernel().sleep(TICK_S)
            answer = self.core.bind(uid, node, kernel().now, int(wall_clock() * 1e9))
            self._settle()
        if isinstance(answer, BindWrite):
            self._write_binding(namespace, name, answer)
        else:
            refused = self.core.pods.get(uid)
            if refused:
                self.core.jobs.left_bind(refused)
            self._back_off(uid)
        self._binding.discard(uid)
        self._settle()

    def _write_binding(self, namespace: str, name: str, write: BindWrite) -> None:
        key = "pods", namespace, name
        binding = {
            "metadata": {"name": name, "uid": write.uid, "annotations": dict(write.annotations)},
            "target": {"name": write.node},
        }
        kernel().sleep(kernel().chance.random() * WRITE_S)
        outcome = BindOutcome.BOUND
        if self._api.is_away:
            self.core.bound(write.uid, BindOutcome.REFUSED)
            return
        self._happened("binding asked")
        try:
            self._objects.update(key, lambda now: bound(now, binding))
            self._placements.bound(key, binding, NAME, began_at=self._began_at)
        except Refusal:
            outcome = BindOutcome.REFUSED
        self._happened("binding done")
        kernel().sleep(kernel().chance.random() * WRITE_S)
        self.core.bound(write.uid, outcome)

    # -- the core's actions ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._decided(self.core, self.asked)
        for action in self.core.actions():
            self._spawn(partial(self._act, action), type(action).__name__)
        self._changed.set()
        self._due.set()

    def _act(self, action: Action) -> None:
        kernel().sleep(kernel().chance.random() * WRITE_S)
        match action:
            case CommitJob(pod, uid, version, job, text):
                metadata: Json = {"resourceVersion": version, "uid": uid}
                metadata["annotations"] = {COMMIT_ANNOTATION: text}
                patch: Json = {"metadata": metadata}
                self._happened("commit asked")
                written = self._patch(pod.namespace, pod.name, patch)
                self._happened("commit done")
                self.core.committed(job, kernel().now, written=written)
                self._settle()
            case Nominate(pod, uid, node):
                if self.core.wants(action):
                    status = {"status": {"nominatedNodeName": node or None}, "metadata": {"uid": uid}}
                    self._patch(pod.namespace, pod.name, status, "status")
            case Nudge():
                pass  # this kube-scheduler tries each pod again after its back-off, also without an event
            case Ungate(pod, uid):
                spec = {"schedulingGates": [{"name": JOB_GATE, "$patch": "delete"}]}
                self._patch(pod.namespace, pod.name, {"spec": spec, "metadata": {"uid": uid}}, strategic=True)
        self._changed.set()

    def _patch(self, namespace: str, name: str, patch: Json, subresource: str = "", *, strategic: bool = False) -> bool:
        if self._api.is_away:
            return False
        try:
            self._objects.patch(("pods", namespace, name), subresource, patch, strategic=strategic)
        except Refusal:
            return False
        return True


@dataclass
class _Strike:
    """An end of the extender that comes when something has happened.

    Attributes:
        point: what has to happen.
        countdown: how often it has to happen.
        away_s: seconds until the next extender starts.
    """

    point: str
    countdown: int
    away_s: float
