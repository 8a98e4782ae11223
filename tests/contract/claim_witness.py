"""Sees what becomes of the pods of a node: how long they wait, and whether a GPU is ever given twice."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from gpuagent.domain.sharing.mode import GPU_MEM
from standin.api.objects import Json
from standin.kubelet.pods import Admission, Granted, Pod
from tests.contract.claim_node import UNPREPARE, ClaimNode
from tests.contract.harness import key

LONGEST_S = 10.0
"""No pod may wait longer for its claims."""
SHARERS = 20
_LOOK_S = 0.05
_RECENT = 4
"""Kubelet's calls that have just ended."""
_HELD = "is prepared for claim"
"""In the Event of a pod whose GPU another claim has. The pod waits for the end of that claim, which is kubelet's."""


class ClaimWitness:
    """Looks at each start of a container, and at each change of a pod.

    A wait begins when the pod has its node, and not before the agent is registered with kubelet in the mode that the
    pod needs.

    Attributes:
        faults: what was given twice.
        forced: UIDs of the claims of pods that were deleted by force.
        ending: UIDs of pods that were deleted and are still there, with the time of the deletion.
        longest_start_s: from the bound pod to its first container.
        longest_held_s: the same of pods that another claim kept waiting.
        longest_end_s: from the deletion of a pod to its end; its containers end at once.
    """

    def __init__(self, node: ClaimNode) -> None:
        self.faults: list[str] = []
        self.longest_start_s = self.longest_held_s = self.longest_end_s = 0.0
        self.forced: set[str] = set()
        self.ending: dict[str, float] = {}
        self._slow_starts: list[str] = []
        self._longest_pause_s = 0.0
        self._node = node
        self._units: dict[str, Counter[str]] = {}
        self._bound_at: dict[str, float] = {}
        self._former: set[str] = set()
        self._is_awaited = True
        self._served_since = time.monotonic()
        self._gib = {gpu.uuid: gpu.memory_mib // 1024 for gpu in node.box.gpus}
        self._lock = threading.RLock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        node.kubelet.claims.watch_starts(self._started)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()

    def killed(self) -> None:
        """The agent was killed: pods wait for nobody until the next one is registered with kubelet."""
        # Kubelet keeps the killed one until the next one has removed its sockets.
        self._former = {*self._former, *self._node.instances()}
        self._is_awaited = True

    def away(self) -> None:
        """Something else that pods need is away, and comes now."""
        self._is_awaited = True

    def ends(self, pod: Json, *, is_deleted: bool) -> None:
        """A pod ends now; of one that is deleted, the end is waited for."""
        if is_deleted:
            self.ending[pod["metadata"]["uid"]] = time.monotonic()

    def admitted(self, admission: Admission) -> None:
        """Kubelet has admitted a pod with units."""
        ids = [one for granted in admission.containers.values() for one in granted.ids.get(GPU_MEM, ())]
        with self._lock:
            self._units[admission.pod.uid] = Counter(one.rpartition("-")[0] for one in ids)
        self._audit(admission.pod.uid)

    def unit_pod_ends(self, pod: Pod) -> None:
        """A pod with units ends now."""
        with self._lock:
            self._units.pop(pod.uid, None)

    def report(self) -> str:
        """What was seen, as lines."""
        return (
            f"{len(self.faults)} given twice; longest waits: {self.longest_start_s:.1f} s for a claim, "
            f"{self.longest_held_s:.1f} s for a GPU of a pod deleted by force, {self.longest_end_s:.1f} s for an end"
            f"\n  the machine let this program wait for up to {self._longest_pause_s:.1f} s{''.join(self._slow_starts)}"
        )

    def _run(self) -> None:
        objects, seen = self._node.server.objects, -1
        looked_at = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            self._longest_pause_s = max(self._longest_pause_s, now - looked_at - _LOOK_S)
            looked_at = now
            with objects.updated:
                if objects.version == seen:
                    objects.updated.wait(_LOOK_S)
                is_changed = objects.version != seen
                seen = objects.version
                pods = {pod["metadata"]["uid"]: pod for pod in objects.all("pods")[0]} if is_changed else None
            if self._is_awaited and {*self._node.instances()} - self._former and self._node.slice():
                self._is_awaited = False
            if self._is_awaited:
                self._served_since = time.monotonic()
            if pods is not None:
                self._look(pods)

    def _look(self, pods: Mapping[str, Json]) -> None:
        now = time.monotonic()
        for uid, pod in pods.items():
            if pod["spec"].get("nodeName"):
                self._bound_at.setdefault(uid, now)
        for uid in [uid for uid in self.ending if uid not in pods]:
            waited = now - max(self.ending.pop(uid), self._served_since)
            self.longest_end_s = max(self.longest_end_s, waited)

    def _started(self, uid: str) -> None:
        now = time.monotonic()
        waited = now - max(self._bound_at.get(uid, now), self._served_since)
        if waited > self.longest_start_s:
            self._note(uid, waited)
        self._audit(uid)

    def _note(self, uid: str, waited: float) -> None:
        """Note a wait that is longer than those before, or that was for the GPU of another claim."""
        events = [event for event in self._node.server.events() if event["involvedObject"]["uid"] == uid]
        is_told = any(_HELD in event["message"] for event in events)
        if is_told or self._has_just_unprepared_forced():
            self.longest_held_s = max(self.longest_held_s, waited)
            return
        self.longest_start_s = waited
        if waited > LONGEST_S:
            self._slow_starts.append(f"\n    {waited:.1f} s: {[event['message'] for event in events]}")

    def _has_just_unprepared_forced(self) -> bool:
        """Whether the claim of a pod that was deleted by force has ended a moment ago.

        The agent waits for that in kubelet's call, and refuses the claim only if it lasts.
        """
        for call in self._node.kubelet.claims.calls[-_RECENT:]:
            if call.method == UNPREPARE and not call.error and self.forced.intersection(call.claims):
                return True
        return False

    def _audit(self, uid: str) -> None:
        """Add up what the containers have that run now."""
        with self._lock:
            self._add_up(uid)

    def _add_up(self, uid: str) -> None:
        gib, sharers, users = Counter[str](), Counter[str](), defaultdict[str, set[str]](set)
        for (pod_uid, _), granted in self._node.kubelet.claims.containers().items():
            for uuid, share in self._shares(granted).items():
                gib[uuid] += share
                sharers[uuid] += 1
                users[uuid].add(f"claim of {pod_uid}")
        for uuid, whole in self._gib.items():
            for pod_uid, units in self._units.items():
                if key(uuid) in units:
                    users[uuid].add(f"units of {pod_uid}")
                    gib[uuid] += units[key(uuid)]
            are_mixed = len({user.partition(" ")[0] for user in users[uuid]}) > 1
            if gib[uuid] > whole or sharers[uuid] > SHARERS or are_mixed:
                self.faults.append(f"{gib[uuid]} of {whole} GiB of {uuid} when {uid} started: {sorted(users[uuid])}")

    def _shares(self, granted: Granted) -> dict[str, int]:
        """GiB of each GPU of a container with a claim."""
        uuids = granted.env["NVIDIA_VISIBLE_DEVICES"].split(",")
        share = granted.env.get("ALIYUN_COM_GPU_MEM_CONTAINER")
        return {uuid: int(share) if share else self._gib[uuid] for uuid in uuids}
