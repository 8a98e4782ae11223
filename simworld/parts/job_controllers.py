"""Jobs as their controllers and Kueue make them: gated pods, admission, eviction, and pods that replace lost ones.

A controller keeps one pod for each index of its job. Kueue lifts the scheduling gates of a job that it admits, pod by
pod. When it evicts the job, the pods are deleted, and the next ones are gated again.
"""

import random
from dataclasses import dataclass, field

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.kueue import COUNT, GROUP
from simworld.history import History
from simworld.parts.amounts import ENDED
from simworld.parts.gpu_scheduler import NAME
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, kernel
from standin.api.objects import Json
from standin.api.refusal import Refusal

KUEUES_GATE = "kueue.x-k8s.io/admission"
NO_SUCH_VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "is-not-there"}}
"""A volume that is never made. kube-scheduler finds no node for the pod, and gpuscheduler cannot know that."""
NEVER = -1.0


@dataclass(eq=False, slots=True)
class Workload:
    """One job.

    Attributes:
        name: of it, which is also the first part of the names of its pods.
        namespace: of its pods.
        resource: that each pod asks for.
        amount: of the resource.
        members: how many pods start together.
        by_labels: whether this project's labels name the job; otherwise those of Kueue do.
        keeps_names: whether a pod that replaces another one has its name.
        gated: how many of its pods are created with Kueue's gate.
        is_possible: whether each of its pods fits on some node of an empty cluster.
        pods: UID of the last pod of each index.
        admitted: whether gates are lifted.
        suspended: whether its controller keeps no pods.
        ended: whether its controller is gone.
        disturbed: whether a pod of it was ever deleted, or has ended.
        names: how many names its controller has used.
    """

    name: str
    namespace: str
    resource: str
    amount: int
    members: int
    by_labels: bool
    keeps_names: bool
    gated: int
    is_possible: bool
    pods: dict[int, str] = field(default_factory=dict)
    admitted: bool = False
    suspended: bool = False
    ended: bool = False
    disturbed: bool = False
    names: int = 0


def has_foreign_gate(pod: Json) -> bool:
    """Whether a gate of Kueue keeps a pod back."""
    gates = pod["spec"].get("schedulingGates") or ()
    return any(gate["name"] == KUEUES_GATE for gate in gates)


class JobControllers:
    """The controllers of all jobs, and Kueue.

    Attributes:
        workloads: all jobs that there were.
    """

    def __init__(self, api: SimulatedApi, history: History, seed: int) -> None:
        self._api = api
        self._objects = api.objects
        self._history = history
        # A stream of its own: worlds without jobs stay as they were.
        self._chance = random.Random(f"{seed}/job controllers")
        self._process = Process("job controllers")
        self.workloads: list[Workload] = []

    # -- what people do -------------------------------------------------------------------------------------------

    def create_workload(  # noqa: PLR0913 (as it is drawn)
        self,
        resource: str,
        amount: int,
        members: int,
        gated: int,
        admitted_after_s: float,
        by_labels: int,
        keeps_names: int,
        is_possible: int,
        namespace: str,
    ) -> None:
        """A job whose first `gated` pods wait for Kueue, which admits them after so long, or never if negative."""
        workload = Workload(
            name=f"work-{len(self.workloads) + 1}",
            namespace=namespace,
            resource=resource,
            amount=amount,
            members=members,
            by_labels=bool(by_labels),
            keeps_names=bool(keeps_names),
            gated=gated,
            is_possible=bool(is_possible),
        )
        self.workloads.append(workload)
        kind = "possible" if is_possible else "impossible"
        what = f"creates {kind} job {workload.name}: {members} x {amount} {resource}, {gated} of them gated"
        self._history.note("user", what)
        kernel().spawn(lambda: self._control(workload), workload.name, self._process)
        if gated:
            kernel().spawn(lambda: self._lift_gates(workload), f"kueue {workload.name}", self._process)
            self._admit_later(workload, admitted_after_s)

    def evict_workload(self, which: int, readmitted_after_s: float) -> None:
        """Kueue takes a job back, and admits it again after so long, or never if negative."""
        workload = self._some(which)
        if workload is None or not workload.gated:
            return
        workload.admitted = False
        self._disturb(workload, "kueue", f"evicts {workload.name}")
        self._admit_later(workload, readmitted_after_s)

    def suspend_workload(self, which: int, seconds: float) -> None:
        """A job is suspended: its pods go, and others come when it goes on."""
        workload = self._some(which)
        if workload is None:
            return
        workload.suspended = True
        self._disturb(workload, "user", f"suspends {workload.name} for {seconds:g} s")

        def go_on() -> None:
            kernel().sleep(seconds)
            workload.suspended = False

        kernel().spawn(go_on, f"resume {workload.name}", self._process)

    def delete_workload(self, which: int, left: int) -> None:
        """A job is deleted, but for so many of its pods. They are not replaced any more."""
        workload = self._some(which)
        if workload is None:
            return
        workload.ended = True
        self._disturb(workload, "user", f"deletes {workload.name} but for {left} pods", left)

    def lose_member(self, which: int, index: int) -> None:
        """A pod of a job is deleted by force. Its controller replaces it."""
        workload = self._some(which)
        if workload is None or workload.ended:
            return
        pod = self.pod_of(workload, index % workload.members)
        if pod is not None:
            workload.disturbed = True
            self._history.note("user", f"deletes {pod['metadata']['name']} of {workload.name} by force")
            self._delete(pod, 0)

    def repair(self) -> None:
        """Have jobs that are suspended go on."""
        for workload in self.workloads:
            workload.suspended = False

    # -- what is asked of it --------------------------------------------------------------------------------------

    def pod_of(self, workload: Workload, index: int) -> Json | None:
        """The pod of an index, if it is there."""
        uid = workload.pods.get(index)
        for pod in self._objects.peek("pods"):
            if pod["metadata"]["uid"] == uid:
                return pod
        return None

    def pods_of(self, workload: Workload) -> list[Json]:
        """The pods of a job that are there, ended and deleted ones included."""
        uids = set(workload.pods.values())
        return [pod for pod in self._objects.peek("pods") if pod["metadata"]["uid"] in uids]

    # -- controllers ----------------------------------------------------------------------------------------------

    def _some(self, which: int) -> Workload | None:
        living = [workload for workload in self.workloads if not workload.ended]
        return living[which % len(living)] if living else None

    def _control(self, workload: Workload) -> None:
        while not workload.ended:
            if not workload.suspended:
                self._keep_pods(workload)
            kernel().sleep(0.05 + self._chance.random() * self._chance.choice((0.1, 1.0)))

    def _keep_pods(self, workload: Workload) -> None:
        for index in range(workload.members):
            may_write = not (self._api.is_away or workload.ended or workload.suspended)
            if not may_write:
                return
            pod = self.pod_of(workload, index)
            if pod is None:
                if index in workload.pods:
                    # The action that deletes any pod has deleted it.
                    workload.disturbed = True
                self._create(workload, index)
                kernel().sleep(self._chance.random() * self._chance.choice((0.01, 0.01, 1.0)))
            elif (pod.get("status") or {}).get("phase") in ENDED:
                workload.disturbed = True
                self._delete(pod, 0)

    def _create(self, workload: Workload, index: int) -> None:
        number = index if workload.keeps_names else workload.names
        workload.names += 1
        name = f"{workload.name}-{number}"
        amounts = {workload.resource: str(workload.amount)}
        spec: Json = {
            "schedulerName": NAME,
            "containers": [
                {"name": "main-0", "image": "work", "resources": {"limits": amounts, "requests": amounts}},
            ],
        }
        if index < workload.gated:
            spec["schedulingGates"] = [{"name": KUEUES_GATE}]
        is_last = index == workload.members - 1
        if is_last and not workload.is_possible:
            spec["volumes"] = [NO_SUCH_VOLUME]
        metadata: Json = {"name": name, "ownerReferences": [_owner(workload)]}
        if workload.by_labels:
            metadata["labels"] = {JOB_LABEL: workload.name, REPLICAS_LABEL: str(workload.members)}
        else:
            metadata["labels"] = {GROUP: workload.name}
            metadata["annotations"] = {COUNT: str(workload.members)}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        try:
            pod = self._objects.create("pods", workload.namespace, body)
        except Refusal:
            return  # a pod of a former job has this name, and is not gone yet
        uid = pod["metadata"]["uid"]
        workload.pods[index] = uid
        self._history.pods[uid] = name
        gate = ", gated" if index < workload.gated else ""
        self._history.note("job controller", f"creates {name} ({uid[:8]}): {workload.amount} {workload.resource}{gate}")

    def _disturb(self, workload: Workload, who: str, what: str, left: int = 0) -> None:
        """Delete the pods of a job but for so many, because an action did that to it."""
        self._history.note(who, what)
        workload.disturbed = True
        self._delete_all(workload, left)

    def _delete_all(self, workload: Workload, left: int = 0) -> None:
        pods = self.pods_of(workload)[left:]

        def delete() -> None:
            for pod in pods:
                while self._api.is_away:
                    kernel().sleep(1.0)
                self._delete(pod, self._chance.choice((0, 30)))
                kernel().sleep(self._chance.random() * self._chance.choice((0.01, 0.5)))

        kernel().spawn(delete, f"delete {workload.name}", self._process)

    def _delete(self, pod: Json, grace_s: int) -> None:
        metadata = pod["metadata"]
        key = "pods", metadata["namespace"], metadata["name"]
        try:
            self._objects.delete(key, grace_s=grace_s, preconditions={"uid": metadata["uid"]})
        except Refusal:
            return

    # -- Kueue ----------------------------------------------------------------------------------------------------

    def _admit_later(self, workload: Workload, after_s: float) -> None:
        if after_s < 0:
            return

        def admit() -> None:
            kernel().sleep(after_s)
            workload.admitted = True
            self._history.note("kueue", f"admits {workload.name}")

        kernel().spawn(admit, f"admit {workload.name}", self._process)

    def _lift_gates(self, workload: Workload) -> None:
        while not workload.ended:
            kernel().sleep(0.1 + self._chance.random() * 0.4)
            if not workload.admitted:
                continue
            for pod in self.pods_of(workload):
                may_lift = has_foreign_gate(pod) and workload.admitted and not self._api.is_away
                if may_lift:
                    self.lift_gate(pod)
                    kernel().sleep(self._chance.random() * self._chance.choice((0.01, 0.01, 2.0)))

    def lift_gate(self, pod: Json) -> None:
        """Kueue admits one pod, unless the API server is away."""
        if self._api.is_away:
            return
        metadata = pod["metadata"]
        gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != KUEUES_GATE]
        patch: Json = {"metadata": {"uid": metadata["uid"]}, "spec": {"schedulingGates": gates}}
        try:
            self._objects.patch(("pods", metadata["namespace"], metadata["name"]), "", patch, strategic=False)
        except Refusal:
            return
        self._history.note("kueue", f"lifts the gate of {metadata['name']}")


def _owner(workload: Workload) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": workload.name,
        "uid": f"owner-of-{workload.name}",
        "controller": True,
    }
