"""Kubelet's work on pods that use claims: one thread a pod, which prepares, starts, waits, ends and unprepares."""

import json
import random
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from standin.api.objects import Json, Objects
from standin.api.refusal import Refusal
from standin.kubelet.dra.cdi import edited
from standin.kubelet.dra.claims import ClaimError, Claims
from standin.kubelet.dra.periods import JITTER, Periods
from standin.kubelet.pods import Admission, Container, Granted, Pod, StartError
from standin.scheduler.scheduler import claim_names, extended_claim

LOOK_S = 0.5
_ENDED = ("Succeeded", "Failed")
_SANDBOX = "PodReadyToStartContainers"


class Cluster(Protocol):
    """The part of an API server that one kubelet needs.

    Attributes:
        objects: everything that is stored.
        node_name: kubelet's own.
    """

    objects: Objects
    node_name: str


class Admits(Protocol):
    """The part of kubelet for which pods with claims are like others."""

    def admit(self, pod: Pod) -> Admission:
        """Admit a pod."""

    def start_container(self, pod: Pod, container: str) -> Granted:
        """Have device plugins start a container. Raises StartError."""

    def terminate(self, pod: Pod) -> None:
        """Note that a pod has ended."""

    def remove(self, pod: Pod) -> None:
        """Forget a pod."""


class Runtime:
    """Sandboxes and containers, which outlive kubelet.

    Attributes:
        containers: what each container got, by UID of the pod and name of the container.
        sandboxes: UIDs of the pods that have one.
        exited: UIDs of the pods whose containers end by themselves.
        init_until: when each ordinary init container that runs ends, by UID of the pod and name of the container.
        init_ended: those that have ended, in the same way. They run again only in a new sandbox.
        init_runs_s: draws the seconds that an ordinary init container runs.
        started: called with the UID of the pod after each start of a container.
    """

    def __init__(self, cdi_dir: Path) -> None:
        self.cdi_dir = cdi_dir
        self.started: Callable[[str], None] = lambda _uid: None
        self.containers: dict[tuple[str, str], Granted] = {}
        self.sandboxes: set[str] = set()
        self.exited: set[str] = set()
        self.init_until: dict[tuple[str, str], float] = {}
        self.init_ended: set[tuple[str, str]] = set()
        self.init_runs_s: Callable[[], float] = lambda: 0.0

    def make_pod(self, uid: str) -> None:
        """Kubelet makes the cgroup of a pod, before it asks any plugin to prepare or start something of it."""

    def create(self, uid: str, name: str) -> None:
        """Create a container whose plugins have agreed to its start. Its program does not run yet."""

    def container_id(self, uid: str, name: str) -> str:
        """The id of a container, as the status of its pod shows it."""
        return f"{uid}/{name}"

    def kill(self, uid: str) -> None:
        """End a pod's containers and its sandbox."""
        self.sandboxes.discard(uid)
        for key in [key for key in self.containers if key[0] == uid]:
            self.containers.pop(key)
        self.init_ended = {key for key in self.init_ended if key[0] != uid}

    def end_init(self, uid: str, name: str) -> None:
        """End an ordinary init container, which has succeeded."""
        self.containers.pop((uid, name), None)
        self.init_ended.add((uid, name))


class PodWorkers:
    """Runs the node's pods, from `start` to `stop`.

    Args:
        api: with the pods.
        kubelet: admits them.
        claims: prepares for them.
        runtime: has their containers.
        periods: how long it waits.
        rng: of the jitter.
        every_pod: whether it also runs pods without ``spec.resourceClaims``, which most tests admit themselves.
    """

    def __init__(
        self,
        api: Cluster,
        kubelet: Admits,
        claims: Claims,
        runtime: Runtime,
        periods: Periods,
        rng: random.Random,
        *,
        every_pod: bool = False,
    ) -> None:
        self._objects, self._node_name, self._kubelet = api.objects, api.node_name, kubelet
        self._claims, self._runtime, self._periods, self._rng = claims, runtime, periods, rng
        self._every_pod = every_pod
        self._stopping = False
        self._woken: set[str] = set()
        self._workers: dict[str, threading.Thread] = {}
        # Kubelet knows pods that have ended until they are deleted, and up to 1.33 it lists them.
        self._over: dict[str, Pod] = {}
        self._ending_orphans: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="standin-pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the work; sandboxes and containers stay."""
        self._stopping = True
        with self._objects.updated:
            self._objects.updated.notify_all()
        self._thread.join()
        for worker in list(self._workers.values()):
            worker.join()

    def active(self) -> set[str]:
        """UIDs of the node's pods that are not ended."""
        return {pod["metadata"]["uid"] for pod in self._pods() if pod["status"].get("phase") not in _ENDED}

    def wake(self, uids: Collection[str]) -> None:
        """Sync these pods now."""
        with self._objects.updated:
            self._woken.update(uids)
            self._objects.updated.notify_all()

    def _pods(self) -> list[Json]:
        return [pod for pod in self._objects.peek("pods") if pod["spec"].get("nodeName") == self._node_name]

    def _run(self) -> None:
        last = -1
        while not self._stopping:
            self._kill_orphans(self.active())
            self._forget_deleted()
            for pod in self._new_pods():
                if self._stopping:
                    return
                self._add(pod)
            last = self._wait(last, time.monotonic() + LOOK_S)

    def _new_pods(self) -> list[Json]:
        """Pods that kubelet gets now, in the order in which it takes those that come together: by age."""
        new = []
        for pod in self._pods():
            is_ours = self._every_pod or bool(pod["spec"].get("resourceClaims"))
            uid = pod["metadata"]["uid"]
            # A real one remembers what it has rejected, also before the API server has heard of it.
            is_new = uid not in self._workers and uid not in self._over
            if is_ours and is_new and pod["status"].get("phase") not in _ENDED:
                new.append(pod)
        return sorted(new, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def _add(self, pod: Json) -> None:
        """Admit a pod, and start its worker. Kubelet's loop admits one after the other, and lists each only then."""
        ours = kubelets_pod(pod)
        is_deleted = "deletionTimestamp" in pod["metadata"]
        if not is_deleted and not self._admitted(pod, ours):
            self._over[ours.uid] = ours
            return
        worker = threading.Thread(target=self._work, args=(pod, ours), name="standin-pod", daemon=True)
        self._workers[ours.uid] = worker
        worker.start()

    def _forget_deleted(self) -> None:
        """Have kubelet list no pod that it has rejected or that has ended, once it is deleted: it has no worker."""
        there = {pod["metadata"]["uid"] for pod in self._pods()}
        for uid in set(self._over) - there:
            self._kubelet.remove(self._over.pop(uid))

    def _kill_orphans(self, active: Collection[str]) -> None:
        """End the containers of pods that have no worker and get none, as kubelet's housekeeping does.

        They were deleted by force while kubelet was away. Or kubelet has rejected them after its own restart: it
        allocates again for init containers that have ended, and before their plugin is back there is nothing for them.
        Their claims are unprepared at the next look for claims of pods that are gone.
        """
        running = {uid for uid, _ in list(self._runtime.containers)} | self._runtime.sandboxes
        for uid in sorted(running.difference(active, self._workers, self._ending_orphans)):
            self._ending_orphans.add(uid)
            # They end all at the same time, and kubelet admits pods meanwhile.
            threading.Thread(target=self._kill_orphan, args=(uid,), name="standin-orphan", daemon=True).start()

    def _kill_orphan(self, uid: str) -> None:
        self._runtime.kill(uid)
        self._ending_orphans.discard(uid)

    def _wait(self, last: int, until: float) -> int:
        """Wait for a change after version `last`, for `stop`, or until it is time; the version then."""
        with self._objects.updated:
            left = until - time.monotonic()
            if not self._stopping and self._objects.version == last and left > 0:
                self._objects.updated.wait(min(left, LOOK_S))
            return self._objects.version

    def _work(self, pod: Json, ours: Pod) -> None:
        uid, key, last, due = pod["metadata"]["uid"], "", -1, 0.0
        while not self._stopping:
            now = self._now(pod)
            ends = now is None or "deletionTimestamp" in now["metadata"] or uid in self._runtime.exited
            pod = now or pod
            if (changed := _key(pod, ends)) != key or time.monotonic() >= due or uid in self._woken:
                key = changed
                self._woken.discard(uid)
                if ends:
                    if self._end(pod, ours, gone=now is None):
                        del self._workers[uid]
                        return
                    due = self._later(self._periods.back_off)
                else:
                    due = self._later(self._sync(pod, ours))
            last = self._wait(last, due)

    def _later(self, seconds: float) -> float:
        return time.monotonic() + seconds * self._rng.uniform(1.0, 1.0 + JITTER)

    def _now(self, pod: Json) -> Json | None:
        meta = pod["metadata"]
        try:
            now = self._objects.get(("pods", meta["namespace"], meta["name"]))
        except Refusal:
            return None
        return now if now["metadata"]["uid"] == meta["uid"] else None

    def _admitted(self, pod: Json, ours: Pod) -> bool:
        admission = self._kubelet.admit(ours)
        if not admission:
            self._report_rejection(pod, admission)
        return bool(admission)

    def _report_rejection(self, pod: Json, admission: Admission) -> None:
        status = {"phase": "Failed", "reason": admission.reason, "message": admission.failed}
        late_s = self._periods.rejection
        if not late_s:
            self._status(pod, status)
            return

        def report() -> None:
            time.sleep(late_s)
            self._status(pod, status)

        threading.Thread(target=report, name="standin-status", daemon=True).start()

    def _sync(self, pod: Json, ours: Pod) -> float:
        """Bring the pod to run; seconds until the next look."""
        uid = ours.uid
        if uid not in self._runtime.sandboxes:
            self._report_no_sandbox(pod)
            self._runtime.make_pod(uid)
            try:
                self._claims.prepare(pod)
            except ClaimError as error:
                # Not an error of the sync: so kubelet waits for the next regular one.
                self._event(pod, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {error}")
                return self._periods.resync
            self._runtime.sandboxes.add(uid)
            self._status(pod, {"conditions": _conditions(pod, "True")})
        init_wait_s = self._run_init(pod, ours)
        if init_wait_s is not None:
            return init_wait_s
        statuses, wait_s = [], self._periods.resync
        for container in pod["spec"]["containers"]:
            name = container["name"]
            status: Json = {"name": name, "state": {"running": {}}}
            try:
                self._start(pod, ours, container)
                status["containerID"] = f"standin://{self._runtime.container_id(uid, name)}"
            except StartError as error:
                waiting = {"reason": "CreateContainerError", "message": str(error)}
                status = {"name": name, "state": {"waiting": waiting}}
                self._event(pod, "Failed", f"Error: {error}")
                wait_s = self._periods.back_off
            statuses.append({**status, "allocatedResourcesStatus": self._claims.healths(pod, container)})
        started = all("containerID" in one for one in statuses)
        self._status(pod, {"phase": "Running" if started else "Pending", "containerStatuses": statuses})
        return wait_s

    def _start(self, pod: Json, ours: Pod, container: Json) -> None:
        """Start a container that does not run. Raises StartError."""
        key = ours.uid, container["name"]
        if key in self._runtime.containers:
            return
        granted = self._kubelet.start_container(ours, container["name"])
        self._runtime.create(*key)
        names = self._claims.cdi_names(pod, container)
        self._runtime.containers[key] = edited(granted, self._runtime.cdi_dir, names)
        self._runtime.started(ours.uid)

    def _run_init(self, pod: Json, ours: Pod) -> float | None:
        """Run the init containers one after the other; seconds until the next look, None if the others may start.

        A sidecar has started when it runs, and goes on. The next container waits for the end of an ordinary one.
        """
        for container in pod["spec"].get("initContainers") or ():
            key = ours.uid, container["name"]
            if key in self._runtime.init_ended:
                continue
            is_new = key not in self._runtime.containers
            try:
                self._start(pod, ours, container)
            except StartError as error:
                self._event(pod, "Failed", f"Error: {error}")
                waiting = {"reason": "CreateContainerError", "message": str(error)}
                status = {"name": container["name"], "state": {"waiting": waiting}}
                self._status(pod, {"phase": "Pending", "initContainerStatuses": [status]})
                return self._periods.back_off
            if _is_sidecar(container):
                continue
            if is_new:
                self._runtime.init_until[key] = time.monotonic() + self._runtime.init_runs_s()
            left_s = self._runtime.init_until[key] - time.monotonic()
            if left_s > 0:
                return left_s
            self._runtime.end_init(*key)
        return None

    def _report_no_sandbox(self, pod: Json) -> None:
        """Report this, and containers that a reboot ended; their ids stay."""
        status: Json = {"conditions": _conditions(pod, "False")}
        if statuses := pod["status"].get("containerStatuses"):
            ended = {"exitCode": 255, "reason": "Unknown"}
            status["containerStatuses"] = [{**one, "state": {"terminated": ended}} for one in statuses]
        self._status(pod, status)

    def _end(self, pod: Json, ours: Pod, *, gone: bool) -> bool:
        """End the pod; whether that is done."""
        uid, meta = ours.uid, pod["metadata"]
        self._runtime.kill(uid)
        try:
            self._claims.unprepare(uid, ours.namespace, claim_names(pod))
        except ClaimError:
            return False
        is_deleted = gone or "deletionTimestamp" in meta
        if is_deleted:
            self._kubelet.remove(ours)
        else:
            self._kubelet.terminate(ours)
            self._over[uid] = ours
        self._runtime.exited.discard(uid)
        if not gone:
            self._status(pod, {"phase": "Succeeded"})
        if "deletionTimestamp" in meta:
            try:
                key = ("pods", meta["namespace"], meta["name"])
                self._objects.delete(key, preconditions={"uid": uid})
            except Refusal:
                return True  # It was deleted by force meanwhile.
        return True

    def _status(self, pod: Json, status: Json) -> None:
        def changed(now: Json) -> Json:
            now["status"] = {**now.get("status", {}), **status}
            return now

        meta = pod["metadata"]
        try:
            self._objects.update(("pods", meta["namespace"], meta["name"]), changed)
        except Refusal:
            return  # It was deleted meanwhile.

    def _event(self, pod: Json, reason: str, message: str) -> None:
        meta = pod["metadata"]
        involved = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        body: Json = {"metadata": {"generateName": f"{meta['name']}."}, "involvedObject": involved}
        body |= {"type": "Warning", "reason": reason, "message": message, "source": {"component": "kubelet"}}
        self._objects.create("events", meta["namespace"], body)


def _key(pod: Json, ends: bool) -> str:
    """The part of a pod whose change makes kubelet sync it at once; the status is not in it."""
    meta = pod["metadata"]
    return json.dumps([pod["spec"], meta.get("labels"), meta.get("annotations"), ends], sort_keys=True)


def _conditions(pod: Json, sandbox: str) -> list[Json]:
    others = [one for one in pod["status"].get("conditions") or () if one["type"] != _SANDBOX]
    return [*others, {"type": _SANDBOX, "status": sandbox}]


def kubelets_pod(pod: Json) -> Pod:
    """A pod of the API server as kubelet's device manager sees it: without what a claim is for."""
    mappings = extended_claim(pod).get("requestMappings") or ()
    by_claim = {(mapped["containerName"], mapped["resourceName"]) for mapped in mappings}

    def limits(container: Json) -> dict[str, Any]:
        found = (container.get("resources") or {}).get("limits") or {}
        amounts = {name: int(amount) for name, amount in found.items() if "/" in name}
        return {name: amount for name, amount in amounts.items() if (container["name"], name) not in by_claim}

    meta = pod["metadata"]
    init_containers = tuple(
        Container(one["name"], limits(one), restartable=_is_sidecar(one))
        for one in pod["spec"].get("initContainers") or ()
    )
    containers = tuple(Container(one["name"], limits(one)) for one in pod["spec"]["containers"])
    return Pod(
        meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        init_containers=init_containers,
        containers=containers,
    )


def _is_sidecar(container: Json) -> bool:
    """Whether an init container goes on beside the containers after it."""
    return container.get("restartPolicy") == "Always"
