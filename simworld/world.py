"""A simulated cluster and the actions that a scenario has for it."""

import itertools
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, MODE_LABEL, REPLICAS_LABEL
from gpuagent.simulation.boxes import MEMORY_LIMITS_SINCE, Box
from gpuagent.simulation.memory_accounting import BackendName
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.jobs.commit import commit_text
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION
from gpuscheduler.core.scheduling import Scheduling
from simworld import checker
from simworld.claim_checker import ClaimChecker
from simworld.claim_faults import ClaimFaults
from simworld.claim_people import ClaimPeople
from simworld.held_checks import HeldChecks
from simworld.history import ALLOCATION, CORES, GIB_PER_GPU, INIT, MEMORY, SIDECAR, WHOLE, History, Living, mixed_modes
from simworld.isolation_checks import IsolationChecks
from simworld.isolation_faults import IsolationFaults
from simworld.job_checks import JobChecks
from simworld.linked_gpus import linked_box
from simworld.occupied import OccupiedChecks
from simworld.parts.amounts import has_claims
from simworld.parts.amounts import limits as limits_of
from simworld.parts.gpu_scheduler import NAME, GpuScheduler
from simworld.parts.job_controllers import KUEUES_GATE, JobControllers
from simworld.parts.node import SimulatedNode
from simworld.parts.scheduler_replicas import Replica, SchedulerReplicas
from simworld.parts.stock_scheduler import StockScheduler
from simworld.refusal_reasons import RefusalReasons
from simworld.refusals import RefusalChecks
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, StuckError, Task, kernel
from simworld.runtime.rpc import SlowAnswers, slow_answers
from simworld.scenario import Action, Scenario
from simworld.scheduler_checks import check_schedulers
from simworld.waiting import check_waiting, free_by_gpu, has_room
from standin.api.objects import Json
from standin.api.refusal import Refusal
from standin.api.server import node_body
from standin.boxes import equal_gpus

SETTLE_S = 200.0
"""How long a repaired world is left in peace. The agent waits for 60 s until a GPU that had a fault is sold again."""
PROBE_S = 20.0
"""How long a pod in a quiet world may take to run."""
PROBE_GRACE_S = 30
"""Grace of pods that were to show that their node has room."""
PROBE_CORES = 10
"""Percent of compute of such a pod in mode core_mem."""
QUIET_S = 10.0
"""How long the pods of one test are left in peace before the next one."""
XID_S = 5.0
"""How long the driver may take to report an XID."""
ENDED_S = 0.1
"""How long the API server takes to end its watches."""
NOTICED_S = 10.0
"""How long an agent may give away a GPU that is lost."""
PUBLISHED_S = 20.0
"""How long a scheduler may not know that a GPU is lost."""
LISTS = ("/v1.PodResourcesLister/List", "/v1alpha1.PodResourcesLister/List")
"""Kubelet's methods that list what all pods hold."""
PLUGIN_CALLS = ("/v1beta1.DevicePlugin/GetPreferredAllocation", "/v1beta1.DevicePlugin/Allocate")
"""What kubelet asks the agent while it admits a pod."""
SLOW_START_S = 12.0
"""How long the requests of an agent wait that starts at a busy API server."""
NODES_WITH_INOTIFY = 3
"""On further nodes, none is left for the agent, which then polls."""
INIT_RUNS_S = (0.0, 0.2, 2.0, 8.0)
"""Seconds that ordinary init containers run."""
PEOPLE = (
    "create_pod",
    "create_pod_with_decision",
    "create_stock_pod",
    "create_controlled_pod",
    "create_gated_pod",
    "create_job_pod",
    "create_gang",
    "create_gang_again",
    "create_twins",
    "create_retried_gang",
    "create_init_pod",
    "delete_pod",
    "replace_pod",
    "replace_running_pod",
    "copy_pod",
    "set_mode",
    "change_mode_for",
    "edit_annotations",
    "keep_editing",
    "forge_plan",
    "label_as_member",
)
"""Actions that are calls to the API server."""


class World:
    """The cluster of a scenario. `run` plays it to its end.

    Attributes:
        history: what happened, and what was broken.
        faults_end_at: when the last fault ends that keeps parts from hearing of each other.
    """

    def __init__(self, scenario: Scenario, root: Path, *, until: str | None = None) -> None:
        self.scenario = scenario
        self._until = until
        self.history = History(kernel().now)
        names = [f"node-{number + 1}" for number in range(len(scenario.nodes))]
        self.api = SimulatedApi(names[0], {MODE_LABEL: scenario.mode}, kubelet=f"v{scenario.nodes[0]}.0")
        for name, version in list(zip(names, scenario.nodes, strict=True))[1:]:
            self.api.objects.create("nodes", "", node_body(name, {MODE_LABEL: scenario.mode}, f"v{version}.0"))
        self.nodes = [
            SimulatedNode(name, _box(name, scenario), version, root, self.api, self.history)
            for name, version in zip(names, scenario.nodes, strict=True)
        ]
        chance = random.Random(f"{scenario.seed}/init containers")
        for number, node in enumerate(self.nodes):
            # The real machine has instances for so many agents.
            node.has_inotify = number < NODES_WITH_INOTIFY
            node.isolates = scenario.isolates
            if scenario.limits:
                node.have_limits()
            node.publishes_sets = scenario.has_links
            node.runtime.init_runs_s = lambda: chance.choice(INIT_RUNS_S)
        self._stock = StockScheduler(self.api, self.history)
        self.replicas = SchedulerReplicas(self.api, self.history, scenario.seed, scenario.replicas)
        self._job_checks = JobChecks(self, self._core)
        self._held_checks = HeldChecks(self)
        self._scheduler = GpuScheduler(
            self.api,
            self.history,
            self.replicas.placements,
            names_a_part=scenario.names_a_part,
            decided=self._check_held,
        )
        self.claims = ClaimPeople(self)
        self.claim_faults = ClaimFaults(self)
        self.isolation_faults = IsolationFaults(self)
        self._isolation_checks = IsolationChecks(self)
        self._claim_checker = ClaimChecker(self)
        self.history.start_checks.append(self._on_lost_gpus)
        self.history.start_checks.append(self._in_one_mode)
        self.history.start_checks.append(self._on_decided_gpus)
        self.history.start_checks.append(self._isolation_checks.check_start)
        self.history.bound_checks.append(self._bound_to_lost_gpu)
        self.history.bound_checks.append(OccupiedChecks(self).check_bound)
        self._refusals = RefusalChecks(self)
        self.history.refusal_checks.append(self._refusals.check)
        reasons = RefusalReasons(self)
        self.history.bound_checks.append(reasons.bound)
        self.history.refusal_checks.append(reasons.check)
        self.jobs = JobControllers(self.api, self.history, scenario.seed)
        self._pods = 0
        self._gangs = 0
        self._again = 0
        self._probes = 0
        self.faults_end_at = -math.inf
        self._probe_pods: list[Json] = []
        self._xids_on_their_way = 0
        self._people = Process("people")
        kernel().at_failure = self._thread_failed
        for product in ("gpuagent", "gpuscheduler", "asyncio"):
            logging.getLogger(product).addHandler(_ErrorsToHistory(product, self.history))

    def _check_held(self, core: Scheduling, asked: set[str]) -> None:
        self._job_checks.check_reserved(core, asked)
        self._held_checks.check(core)

    # -- life -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the scenario, repair everything, wait, and hold what is there against the promises."""
        for node in self.nodes:
            node.start_kubelet()
            node.start_agent()
            if node.limits is not None:
                node.limits.start()
        self._stock.start()
        self._start_scheduler()
        self.claims.start()
        if any(action.kind == "create_workload" for action in self.scenario.actions):
            self._job_checks.start()
        try:
            self._play()
        except StuckError as error:
            self.history.break_promise(f"nothing can happen any more: {error}")

    def _thread_failed(self, task: Task, error: BaseException) -> None:
        """Tell at once whose thread it was: what breaks afterwards may only follow from it."""
        thread = f"thread {task.name} of {task.process.name}"
        self.history.break_promise(f"{thread} ended: {type(error).__name__}: {error}")

    def _play(self) -> None:
        for action in self.scenario.actions:
            self._play_until(action.at)
            if self._is_over:
                return
            self._act(action)
        self._play_until(self.scenario.lasts_s)
        self._repair()
        self._play_until(self.scenario.lasts_s + SETTLE_S)
        if self._is_over:
            return
        checker.check_quiet(self)
        if self.scenario.decides:
            check_waiting(self)
        if self.scenario.replicas:
            check_schedulers(self)
        elif self.scenario.decides and self._scheduler.living_core is None:
            self.history.break_promise("gpuscheduler answers nothing")
        self._claim_checker.check_quiet()
        self._isolation_checks.check_quiet()
        self._job_checks.check_quiet()
        self._probe()
        self._claim_checker.probe(PROBE_S)

    @property
    def _is_over(self) -> bool:
        return self._until is not None and self.history.says(self._until)

    def _play_until(self, at: float) -> None:
        kernel().run(lambda: self._is_over, self.history.began_at + at - kernel().now)

    def _play_for(self, seconds: float) -> None:
        kernel().run(lambda: False, seconds)

    def _act(self, action: Action) -> None:
        self._refusals.acts(action)
        is_about_claims = hasattr(self.claims, action.kind)
        if self.api.is_away and (is_about_claims or action.kind in PEOPLE):
            return  # they get no answer
        actors = (self.claims, self.claim_faults, self.isolation_faults, self.jobs)
        actor = next((actor for actor in actors if hasattr(actor, action.kind)), self)
        act: Callable[..., None] = getattr(actor, action.kind)
        act(*action.args)

    def _repair(self) -> None:
        # If every process stood still until now, an XID of before would come after the repair, and stay.
        kernel().run(lambda: not self._xids_on_their_way, XID_S)
        self.history.note("world", "everything is repaired and left in peace")
        self.start_api()
        self.api.resume()
        self.api.denied.clear()
        self.api.slow_s = 0.0
        slow_answers.clear()
        for node in self.nodes:
            node.driver.simulator.unhang()
            node.disk_s = 0.0
            node.has_disk_pressure = False
            node.periods.rejection = 0.0
            for gpu in node.box.gpus:
                if gpu.uuid in node.lost:
                    continue
                # A GPU that comes back has been reset, and one that was never lost must not be.
                if gpu.uuid in node.lost_at:
                    node.driver.simulator.restore(gpu.uuid)
                node.driver.simulator.action(gpu.uuid, 0)
                node.lost_at.pop(gpu.uuid, None)
            node.start_kubelet()
            node.start_agent()
        self.isolation_faults.repair()
        self.api.failing.clear()
        self._start_scheduler()
        self.jobs.repair()

    def _core(self) -> Scheduling | None:
        """What decides for gpuscheduler, with whatever replicas; None while nothing does."""
        return self.replicas.leading_core() if self.scenario.replicas else self._scheduler.living_core

    def _start_scheduler(self) -> None:
        if self.scenario.replicas:
            self.replicas.start()
        else:
            self._scheduler.start()

    def _probe(self) -> None:
        """Pods in a quiet world have to run within their bound wherever there is room for them."""
        for node in self.nodes:
            for resource in checker.resources_of_probes(self, node):
                # The free units may be on GPUs that have as many pods as may share one.
                if not self._largest(node, resource):
                    continue
                self._probe_node(node, resource, 1, {})
                largest = self._largest(node, resource)
                if largest:
                    # With annotations from another pod's YAML: they decide nothing.
                    self._probe_node(node, resource, largest, self._some_annotations(node, largest))
        if self.scenario.decides:
            # gpuscheduler did not decide on these pods, so it knows their GPUs once the agents have written them.
            self._play_for(QUIET_S)
            self._probe_scheduler()
            # They may have all that was free.
            for pod in self._probe_pods:
                self.delete(pod, PROBE_GRACE_S)
            self._play_for(QUIET_S)
            self._probe_scheduler()

    def _largest(self, node: SimulatedNode, resource: str) -> int:
        """Units of the largest pod for which a GPU of the node has room."""
        cores = self._cores_of_probe(node)
        gpus = [left[resource] for left in free_by_gpu(self, node).values() if left[CORES] >= cores]
        return max(gpus, default=0)

    def _cores_of_probe(self, node: SimulatedNode) -> int:
        """Percent of compute that each pod has to ask for beside memory, in the mode of the node."""
        mode = checker.mode_of(self, node)
        return PROBE_CORES if CORES in checker.BY_MODE[mode] else 0

    def _some_annotations(self, node: SimulatedNode, amount: int) -> dict[str, str]:
        """Annotations of a pod of the node, as if it had so many units of the fullest GPU.

        They name the pod, because the copy of a decision that names none and fits by chance counts as one.
        """
        for pod in self.api.objects.peek("pods"):
            annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
            if DECIDED_ANNOTATION in annotations and pod["spec"].get("nodeName") == node.name:
                return annotations | _decision(self._fullest_gpu(node), amount)
        return {}

    def _fullest_gpu(self, node: SimulatedNode) -> int:
        """The number of the GPU that has the fewest units of memory left."""
        free = free_by_gpu(self, node)
        fullest = min(free, key=lambda uuid: free[uuid][MEMORY])
        return next(gpu.minor for gpu in node.box.gpus if gpu.uuid == fullest)

    def _probe_node(self, node: SimulatedNode, resource: str, amount: int, annotations: dict[str, str]) -> None:
        self._probes += 1
        limits = _limits(resource, amount, self._cores_of_probe(node))
        pod = self._create(f"probe-{self._probes}", limits, node=node.name, annotations=annotations)
        self._probe_pods.append(pod)
        self._must_run(pod, f"a pod for {amount} {resource} does not run on {node.name}")

    def _probe_scheduler(self) -> None:
        """Gpuscheduler places the largest pods that fit, as the agents of their nodes have it."""
        for node in self.nodes:
            for resource in checker.resources_of_probes(self, node):
                amount = self._largest(node, resource)
                limits = _limits(resource, amount, self._cores_of_probe(node))
                amounts = {name: str(wanted) for name, wanted in limits.items()}
                asked = {"spec": {"containers": [{"resources": {"limits": amounts}}]}}
                # A pod without room would wait, and then take the room of the next one.
                if not amount or not has_room(self, node, asked):
                    continue
                self._probes += 1
                pod = self._create(f"probe-{self._probes}", limits)
                self._must_run(pod, f"gpuscheduler has no place for {amount} {resource}, or the agent refuses it")

    def _in_one_mode(self, starting: Living) -> Iterator[str]:
        """The promise that a container breaks by starting beside one that was sold in another mode."""
        return mixed_modes(starting, self.history.neighbors(starting))

    def _on_lost_gpus(self, living: Living) -> Iterator[str]:
        """The promise that a container breaks by starting on a GPU that was lost before."""
        used = sorted(self._claim_checker.new_gpus(living))
        for node in self.nodes:
            for uuid in used:
                lost_at = node.lost_at.get(uuid, math.inf)
                if kernel().now - lost_at > NOTICED_S:
                    yield f"{self.history.name(living.pod_uid)} starts on GPU {uuid}, which is lost"

    def _on_decided_gpus(self, starting: Living) -> Iterator[str]:
        """The promise that a container breaks by having whole GPUs that the scheduler did not choose for its pod."""
        uid = starting.pod_uid
        decided = self.history.decisions.get(uid, {}).get(GROUP_ANNOTATION)
        # The agent may follow what the tenant wrote instead.
        if decided is None or WHOLE not in starting.units or uid in self.history.edited:
            return
        gpus = {gpu.uuid: str(gpu.minor) for node in self.nodes for gpu in node.box.gpus}
        others = {gpus[uuid] for uuid in starting.gpus} - set(decided.split(","))
        if others:
            name = f"{self.history.name(uid)}/{starting.container}"
            yield f"{name} got GPUs {sorted(others)}, and the scheduler decided {decided}"

    def _bound_to_lost_gpu(self, uid: str, node_name: str, annotations: Mapping[str, str]) -> Iterator[str]:
        """The promise that a Binding breaks which decides for a GPU that was lost before."""
        index = annotations.get("ALIYUN_COM_GPU_MEM_IDX")
        for node in self.nodes:
            if node.name != node_name:
                continue
            for gpu in node.box.gpus:
                # While the API server or the agent is away, gpuscheduler cannot know that a GPU is lost.
                told_from = max(node.lost_at.get(gpu.uuid, math.inf), self.faults_end_at)
                is_decided = str(gpu.minor) == index
                if is_decided and kernel().now - told_from > PUBLISHED_S:
                    yield f"{self.history.name(uid)} is bound to GPU {index} of {node.name}, which is lost"

    def _must_run(self, pod: Json, otherwise: str) -> None:
        uid = pod["metadata"]["uid"]
        started = kernel().run(lambda: (uid, "main-0") in self.history.living, PROBE_S)
        if not started:
            status = checker.find_pod(self, uid)
            self.history.break_promise(f"{otherwise} within {PROBE_S:g} s: {status}")

    def create_probe(self, name: str, members: int) -> Json:
        """A pod of one unit of memory; alone, or of a job of so many."""
        labels = {JOB_LABEL: "probe", REPLICAS_LABEL: str(members)} if members > 1 else None
        return self._create(name, {MEMORY: 1}, labels=labels)

    # -- people ---------------------------------------------------------------------------------------------------

    def create_pod(self, resource: str, amount: int, cores: int, containers: int) -> None:
        self._new_pod(resource, amount, cores, containers)

    def create_stock_pod(self, resource: str, amount: int, cores: int, containers: int) -> None:
        """A pod that names no scheduler, so that a kube-scheduler without gpuscheduler binds it."""
        self._pods += 1
        self._create(f"pod-{self._pods}", _limits(resource, amount, cores), containers=containers, is_stock=True)

    def create_controlled_pod(self, resource: str, amount: int) -> None:
        """A pod of a controller that makes another one whenever it has ended or is gone."""
        self._pods += 1
        name = f"pod-{self._pods}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-{name}", "controller": True}

        def control() -> None:
            for number in itertools.count():
                pod = self._create(f"{name}-{number}", {resource: amount}, owner=owner)
                while self.api.is_away or checker.may_start(self, pod):
                    kernel().sleep(1.0)

        kernel().spawn(control, name, self._people)

    def create_job_pod(self, resource: str, amount: int, cores: int, seconds: float) -> None:
        """A pod that ends by itself some time after it has started."""
        self.end_later(self._new_pod(resource, amount, cores, 1), seconds)

    def create_init_pod(  # noqa: PLR0913 (what it has)
        self, resource: str, amount: int, cores: int, init_amount: int, sidecar_amount: int, seconds: float
    ) -> None:
        """A pod with an init container, a sidecar, or both (0 for none). It ends by itself; with 0 seconds, never."""
        self._pods += 1
        amounts = {INIT: init_amount, SIDECAR: sidecar_amount}
        init = [
            _init_container(kind, _limits(resource, of_kind, cores if kind == INIT else 0))
            for kind, of_kind in amounts.items()
            if of_kind
        ]
        pod = self._create(f"pod-{self._pods}", _limits(resource, amount, cores), init=init)
        if seconds:
            self.end_later(pod, seconds)

    def end_later(self, pod: Json, seconds: float) -> None:
        """Have a pod end by itself so long after it has started."""
        uid = pod["metadata"]["uid"]

        def end() -> None:
            while (uid, "main-0") not in self.history.living:
                if not checker.may_start(self, pod):
                    return
                kernel().sleep(2.0)
            kernel().sleep(seconds)
            for node in self.nodes:
                node.runtime.exited.add(uid)

        kernel().spawn(end, f"job {uid}", self._people)

    def create_gang(self, resource: str, amount: int, members: int, lag_s: float) -> None:
        """A job whose pods start together; they come one after another."""
        self._gangs += 1
        self._make_gang("default", f"job-{self._gangs}", resource, amount, members, lag_s)

    def create_twins(self, resource: str, amount: int, members: int, lag_s: float) -> None:
        """Two jobs of one name, in two namespaces."""
        self._gangs += 1
        job = f"job-{self._gangs}"
        self._make_gang("default", job, resource, amount, members, lag_s)
        self._make_gang("team", job, resource, amount, members, 3 * lag_s)

    def create_gang_again(self, resource: str, amount: int, members: int, lag_s: float) -> None:
        """The last job is deleted, and created again at once. Until the former pods have ended, both have its label."""
        job = f"job-{self._gangs}"
        for pod in self._pods_of_people():
            labels = pod["metadata"].get("labels") or {}
            if labels.get(JOB_LABEL) == job:
                self.delete(pod, 30)
        self._again += 1
        self._make_gang("default", job, resource, amount, members, lag_s, f"-again-{self._again}")

    def _make_gang(  # noqa: PLR0913 (what it consists of)
        self, namespace: str, job: str, resource: str, amount: int, members: int, lag_s: float, suffix: str = ""
    ) -> None:
        """Create the pods of a job one after another. `suffix` tells pods from those of a former job of the name."""
        labels = {JOB_LABEL: job, REPLICAS_LABEL: str(members)}
        key = f"{namespace}/{job}{suffix}"
        self.history.gang_sizes[key] = members

        def make() -> None:
            for member in range(members):
                pod = self._create(f"{job}-{member}{suffix}", {resource: amount}, labels=labels, namespace=namespace)
                self.history.gangs.setdefault(key, []).append(pod["metadata"]["uid"])
                kernel().sleep(lag_s)

        kernel().spawn(make, job, self._people)

    def create_retried_gang(self, resource: str, amount: int, members: int, seconds: float) -> None:
        """An indexed job: all of its pods but the last one succeed, and that one is deleted and comes again."""
        self._gangs += 1
        job = f"job-{self._gangs}"
        key = f"default/{job}"
        labels = {JOB_LABEL: job, REPLICAS_LABEL: str(members)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}
        self.history.gang_sizes[key] = members

        def make(member: int) -> Json:
            pod = self._create(f"{job}-{member}", {resource: amount}, labels=labels, owner=owner)
            self.history.gangs.setdefault(key, []).append(pod["metadata"]["uid"])
            return pod

        def live() -> None:
            pods = [make(member) for member in range(members)]
            uids = [pod["metadata"]["uid"] for pod in pods]
            while not all((uid, "main-0") in self.history.living for uid in uids):
                if not all(checker.may_start(self, pod) for pod in pods):
                    return
                kernel().sleep(2.0)
            kernel().sleep(seconds)
            for node in self.nodes:
                node.runtime.exited.update(uids[:-1])
            kernel().sleep(15.0)
            if not checker.may_start(self, pods[-1]):
                return
            self.delete(pods[-1], 0)
            again = make(members - 1)
            self.history.retried[again["metadata"]["uid"]] = uids[:-1]

        kernel().spawn(live, job, self._people)

    def delete_pod(self, which: int, grace_s: int) -> None:
        pod = self._some_pod(which)
        if pod is not None:
            self.delete(pod, grace_s)

    def replace_pod(self, which: int, resource: str, amount: int, cores: int) -> None:
        """Delete a pod by force, and create another one with its name at once."""
        pod = self._some_pod(which)
        if pod is not None:
            self._replace(pod, _limits(resource, amount, cores), 1)

    def replace_running_pod(self, which: int, resource: str, amount: int, cores: int, containers: int) -> None:
        """The same with a pod that runs, so that kubelet lists its devices until it learns of the deletion."""
        pods = self._running_pods()
        if pods:
            self._replace(pods[which % len(pods)], _limits(resource, amount, cores), containers)

    def replace_bound_pod(self, resource: str, amount: int, next_amount: int, after_s: float) -> None:
        """Create a pod, and delete it by force so long after it was bound. Another one has its name at once."""
        pod = self._new_pod(resource, amount, 0, 1)

        def replace_it() -> None:
            while not self._is_bound(pod):
                if not checker.may_start(self, pod):
                    return
                with self.api.objects.updated:
                    self.api.objects.updated.wait(1.0)
            kernel().sleep(after_s)
            self._replace(pod, _limits(resource, next_amount, 0), 1)

        kernel().spawn(replace_it, f"replace {pod['metadata']['name']}", self._people)

    def _is_bound(self, pod: Json) -> bool:
        uid = pod["metadata"]["uid"]
        return any(
            other["metadata"]["uid"] == uid and other["spec"].get("nodeName") for other in self._pods_of_people()
        )

    def _replace(self, pod: Json, limits: dict[str, int], containers: int) -> None:
        self.delete(pod, 0)
        meta = pod["metadata"]
        self._create(meta["name"], limits, namespace=meta["namespace"], containers=containers)

    def copy_pod(self, which: int, resource: str, amount: int, cores: int) -> None:
        """Delete a pod, and create it from its own YAML: its annotations come along. With 0, its amount stays."""
        pod = self._some_pod(which)
        if pod is None:
            return
        # `_create` makes pods without claims, so a copy would not ask for what its original has.
        if has_claims(pod):
            return
        self.delete(pod, 0)
        limits = _limits(resource, amount, cores) if amount else dict(limits_of(pod))
        meta = pod["metadata"]
        annotations = dict(meta.get("annotations") or {})
        copy = self._create(meta["name"], limits, namespace=meta["namespace"], annotations=annotations)
        # The copy begins with a decision about another pod, as if its tenant had written one.
        self.history.edit(copy["metadata"]["uid"])

    def create_pod_with_decision(self, amount: int, index: int, claimed: int) -> None:
        """A tenant creates a pod with a decision of its own: so many units of one GPU."""
        self._pods += 1
        annotations = _decision(index, claimed)
        pod = self._create(f"pod-{self._pods}", {MEMORY: amount}, annotations=annotations)
        self.history.edit(pod["metadata"]["uid"])

    def forge_plan(self, index: int, claimed: int, amount: int) -> None:
        """A tenant replaces a pod of its job that runs, and writes a plan that gives the new one more than it asks for.

        gpuscheduler writes such a plan itself, and reads it when it starts, if other pods of the plan are bound.
        """
        running = [pod for pod in self._running_pods() if JOB_LABEL in (pod["metadata"].get("labels") or {})]
        if len(running) < 2:
            return
        former, other = running[:2]
        self.delete(former, 0)
        meta = former["metadata"]
        pod = self._create(meta["name"], {MEMORY: amount}, labels=dict(meta["labels"]))
        claims = Amounts(claimed, 0)
        choice = Choice(((index, claims),), {0: {index: claims}})
        place = other["spec"]["nodeName"], choice
        uid = pod["metadata"]["uid"]
        text = commit_text({uid: place, other["metadata"]["uid"]: place})
        planned = f"plans {claimed} units of GPU {index} for {meta['name']}"
        self.history.note("tenant", f"{planned}, which asks for {amount}")
        self._patch_metadata(pod, {"annotations": {COMMIT_ANNOTATION: text}})
        # A plan says that kube-scheduler has come to its pods. A plan of a tenant looks the same.
        self._scheduler.asked.add(uid)

    def label_as_member(self, which: int, job: str, members: int) -> None:
        """A tenant labels a pod that runs as one of another job."""
        pods = self._running_pods()
        if not pods:
            return
        pod = pods[which % len(pods)]
        self.history.note("tenant", f"labels {pod['metadata']['name']} as a pod of {job}")
        self._patch_metadata(pod, {"labels": {JOB_LABEL: job, REPLICAS_LABEL: str(members)}})

    def _patch_metadata(self, pod: Json, metadata: Json) -> None:
        meta = pod["metadata"]
        patch: Json = {"metadata": {"uid": meta["uid"], **metadata}}
        with suppress(Refusal):  # it is gone
            self.api.objects.patch(("pods", meta["namespace"], meta["name"]), "", patch, strategic=False)

    def set_mode(self, which: int, mode: str) -> None:
        node = self.node_of(which)
        self.history.note("operator", f"labels {node.name} {mode}")
        patch: Json = {"metadata": {"labels": {MODE_LABEL: mode}}}
        self.api.objects.patch(("nodes", "", node.name), "", patch, strategic=False)

    def change_mode_for(self, which: int, mode: str, seconds: float) -> None:
        """A node has another mode for a while, and then the mode of the scenario again."""
        self.set_mode(which, mode)

        def change_back() -> None:
            if not self.api.is_away:
                self.set_mode(which, self.scenario.mode)

        self.end_fault_in(seconds, change_back)

    def _new_pod(self, resource: str, amount: int, cores: int, containers: int) -> Json:
        self._pods += 1
        return self._create(f"pod-{self._pods}", _limits(resource, amount, cores), containers=containers)

    def _create(  # noqa: PLR0913 (the fields of a pod)
        self,
        name: str,
        limits: dict[str, int],
        *,
        node: str = "",
        containers: int = 1,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        namespace: str = "default",
        owner: Json | None = None,
        init: Sequence[Json] = (),
        is_stock: bool = False,
        gate: str = "",
    ) -> Json:
        amounts = {resource: str(amount) for resource, amount in limits.items()}
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {"name": f"main-{number}", "image": "work", "resources": {"limits": amounts, "requests": amounts}}
                    for number in range(containers)
                ]
            },
            "status": {"phase": "Pending"},
        }
        if init:
            body["spec"]["initContainers"] = list(init)
        if node:
            body["spec"]["nodeName"] = node
        elif self.scenario.decides and not is_stock:
            body["spec"]["schedulerName"] = NAME
        if gate:
            body["spec"]["schedulingGates"] = [{"name": gate}]
        if labels:
            body["metadata"]["labels"] = labels
        if annotations:
            body["metadata"]["annotations"] = annotations
        if owner:
            body["metadata"]["ownerReferences"] = [owner]
        pod = self.api.objects.create("pods", namespace, body)
        uid = pod["metadata"]["uid"]
        self.history.pods[uid] = name if namespace == "default" else f"{namespace}/{name}"
        asks = ", ".join(f"{amount} {resource}" for resource, amount in limits.items())
        what = f"creates {name} ({uid[:8]}): {containers} x {asks}"
        if init:
            what += " after " + ", ".join(container["name"] for container in init)
        self.history.note("user", what)
        return pod

    def delete(self, pod: Json, grace_s: int) -> None:
        """Delete a pod that may be gone by now; without a grace, by force."""
        name = pod["metadata"]["name"]
        self.history.note("user", f"deletes {name}" + ("" if grace_s else " by force"))
        try:
            self.api.objects.delete(("pods", pod["metadata"]["namespace"], name), grace_s=grace_s)
        except Refusal:
            return
        # A replica may be cut off for longer.
        is_seen_soon = not self.scenario.replicas
        if is_seen_soon and not grace_s:
            self.history.deleted_at[pod["metadata"]["uid"]] = kernel().now

    def _pods_of_people(self) -> list[Json]:
        return [pod for pod in self.api.objects.peek("pods") if pod["metadata"]["namespace"] == "default"]

    def _running_pods(self) -> list[Json]:
        running = {living.pod_uid for living in self.history.living.values()}
        return [pod for pod in self._pods_of_people() if pod["metadata"]["uid"] in running]

    def _some_pod(self, which: int) -> Json | None:
        pods = self._pods_of_people()
        return pods[which % len(pods)] if pods else None

    def node_of(self, which: int) -> SimulatedNode:
        """The node that the number of an action means."""
        return self.nodes[which % len(self.nodes)]

    # -- faults ---------------------------------------------------------------------------------------------------

    def restart_agent(self, which: int, away_s: float) -> None:
        node = self.node_of(which)
        self.history.note(f"{node.name} agent", f"is killed, for {away_s:g} s")
        node.kill_agent()
        self.end_fault_in(away_s, node.start_agent)

    def restart_kubelet(self, which: int, away_s: float) -> None:
        node = self.node_of(which)
        self.history.note(f"{node.name} kubelet", f"is killed, for {away_s:g} s")
        node.kill_kubelet()
        self.end_fault_in(away_s, node.start_kubelet)

    def use_one_loop(self) -> None:
        """Kubelets learn of pods only between two admissions, as real ones do."""
        for node in self.nodes:
            node.use_one_loop()

    def lose_reservations(self, which: int) -> None:
        """A kubelet starts that forgets what it reserves if it is asked for a list meanwhile, as real ones do."""
        self.node_of(which).loses_reservations = True
        self.restart_kubelet(which, 0.0)

    def restart_both(self, which: int, away_s: float) -> None:
        self.restart_kubelet(which, away_s)
        self.restart_agent(which, away_s * kernel().chance.random())

    def restart_scheduler(self, which: int, away_s: float) -> None:
        if self.scenario.replicas:
            self.replicas.strike_now(which, "kill_both", away_s)
            return
        self.history.note(NAME, f"is killed, for {away_s:g} s")
        self._scheduler.kill()
        self.end_fault_in(away_s, self._scheduler.start)

    def strike_scheduler(self, point: str, countdown: int, what: str, seconds: float) -> None:
        self.replicas.strike(point, countdown, what, seconds)

    def strike_extender(self, point: str, countdown: int, away_s: float) -> None:
        """The extender of the core alone ends at a moment; kube-scheduler goes on."""
        self._scheduler.strike(point, countdown, away_s)

    def forget_asked_pod(self, is_of_job: int) -> None:
        """Kube-scheduler does not come back to the next pod for which GPUs are reserved, single or of a job."""
        self._scheduler.forget_next(is_of_job=bool(is_of_job))

    def grow(self, cycle_s: float) -> None:
        """The schedulers start again, and take the cluster for one of thousands of nodes."""
        self.history.note(
            NAME, f"starts again in a large cluster, where kube-scheduler takes up to {cycle_s:g} s for a pod"
        )
        self._scheduler.kill()
        self._scheduler.cycle_s = cycle_s
        self._scheduler.start()

    def create_gated_pod(self, resource: str, amount: int, gated_s: float) -> None:
        """A pod that Kueue holds back for so long, or for ever if negative."""
        self._pods += 1
        pod = self._create(f"pod-{self._pods}", {resource: amount}, gate=KUEUES_GATE)
        if gated_s >= 0:
            self._after(gated_s, lambda: self.jobs.lift_gate(pod))

    def slow_volumes(self, most_s: float, seconds: float) -> None:
        """Kube-scheduler has volumes made for a pod between its two calls of the extender, which takes a while."""
        self.history.note("kube-scheduler", f"waits for volumes up to {most_s:g} s before it binds, for {seconds:g} s")
        self._scheduler.volumes_s = most_s

        def speed_up() -> None:
            self._scheduler.volumes_s = 0.0

        self._after(seconds, speed_up)

    def end_pods_slowly(self, seconds: float) -> None:
        """Containers take so long to end after their pod is deleted."""
        self.history.note("world", f"has containers that take {seconds:g} s to end")
        for node in self.nodes:
            node.runtime.ends_after = lambda: seconds

    def refuse_nominated_pod(self) -> None:
        """Kube-scheduler has a reason of its own against the next nominated pod that it tries."""
        self._scheduler.refuse_nominated()

    def stall_scheduler(self, which: int, seconds: float) -> None:
        self.replicas.strike_now(which, "stall", seconds)

    def stall_leader(self, seconds: float) -> None:
        """The replica that leads stands still, with its kube-scheduler."""
        for which, replica in enumerate(self.replicas.replicas):
            if replica.leads:
                self.stall_scheduler(which, seconds)

    def cut_scheduler(self, which: int, seconds: float) -> None:
        self.replicas.strike_now(which, "cut", seconds)

    def fail_bindings(self, lag_s: float, *codes: int) -> None:
        """The next Bindings get these answers; meanwhile, the leader's watches may be behind."""
        self.history.note("api server", f"answers Bindings with {codes}, and its events come {lag_s:g} s later")
        for which in range(self.scenario.replicas):
            self.replicas.strike_now(which, "delay_watches", lag_s)
        self.api.fail("create", "pods/binding", *codes)

    def edit_annotations(self, which: int, index: int, amount: int = 8) -> None:
        """A tenant writes another GPU into a pod's annotations, also while it runs."""
        pod = self._some_pod(which)
        if pod is None:
            return
        name = pod["metadata"]["name"]
        self.history.note("tenant", f"writes {amount} units of GPU {index} into the annotations of {name}")
        self._edit(pod, index, amount)

    def _edit(self, pod: Json, index: int, amount: int) -> None:
        """Write a decision of the tenant's own: so many units of one GPU for the first container."""
        meta = pod["metadata"]
        uid = meta["uid"]
        self.history.edit(uid)
        patch: Json = {"metadata": {"uid": uid, "annotations": _decision(index, amount)}}
        key = ("pods", meta["namespace"], meta["name"])
        with suppress(Refusal):  # it is gone
            self.api.objects.patch(key, "", patch, strategic=False)

    def keep_editing(self, which: int, index: int, amount: int, seconds: float) -> None:
        """A tenant moves a pod that runs to another GPU in its annotations, twice a second; 0 for its own amount."""
        pods = self._running_pods()
        if not pods:
            return
        pod = pods[which % len(pods)]
        amount = amount or limits_of(pod).get(MEMORY, 0)
        self.history.note("tenant", f"keeps the annotations of {pod['metadata']['name']} wrong for {seconds:g} s")

        def edit() -> None:
            for _ in range(int(2 * seconds)):
                kernel().sleep(0.5)
                if not self.api.is_away:
                    self._edit(pod, index, amount)

        kernel().spawn(edit, "tenant", self._people)

    def raise_xid(self, which: int, gpu: int, xid: int) -> None:
        node = self.node_of(which)
        index = gpu % self.scenario.gpus
        self.history.note(f"{node.name} driver", f"reports XID {xid} on GPU {index}")
        self._xids_on_their_way += 1

        def report() -> None:
            node.driver.simulator.xid(index, xid)
            self._xids_on_their_way -= 1

        kernel().spawn(report, "xid", self._people)

    def lose_gpu(self, which: int, gpu: int, _xid: int) -> None:
        node = self.node_of(which)
        index = gpu % self.scenario.gpus
        self.history.note(f"{node.name} driver", f"loses GPU {index}")
        node.driver.simulator.lose(index)
        uuid = node.box.gpus[index].uuid
        node.lost_at.setdefault(uuid, kernel().now)
        node.ever_lost.add(uuid)
        self._after(30.0, lambda: self._restore(node, index))

    def _restore(self, node: SimulatedNode, index: int) -> None:
        uuid = node.box.gpus[index].uuid
        if uuid not in node.lost:
            node.driver.simulator.restore(index)
            node.lost_at.pop(uuid, None)

    def break_gpu(self, which: int, gpu: int, _xid: int) -> None:
        """A GPU is lost for good: it is not repaired, and the others go on."""
        node = self.node_of(which)
        index = gpu % self.scenario.gpus
        self.history.note(f"{node.name} driver", f"loses GPU {index} for good")
        node.driver.simulator.lose(index)
        uuid = node.box.gpus[index].uuid
        node.lost[uuid] = kernel().now
        node.ever_lost.add(uuid)
        node.lost_at.setdefault(uuid, kernel().now)

    def hang_driver(self, which: int, seconds: float) -> None:
        node = self.node_of(which)
        function = "nvmlDeviceGetMemoryInfo"
        self.history.note(f"{node.name} driver", f"hangs in {function} for {seconds:g} s")
        node.driver.simulator.hang(function)
        self.end_fault_in(seconds, node.driver.simulator.unhang)

    def stop_api(self, seconds: float) -> None:
        if self.api.ended:
            return
        self.history.note("api server", f"is away for {seconds:g} s")
        self.api.stop()
        self.end_fault_in(seconds, self.start_api)

    def start_api(self) -> None:
        if self.api.ended:
            self.api.start()

    def pause_api(self, seconds: float) -> None:
        self.history.note("api server", f"answers nothing for {seconds:g} s")
        self.api.pause()
        self.end_fault_in(seconds, self.api.resume)

    def silence_api(self, seconds: float) -> None:
        self.history.note("api server", f"says nothing on its watches for {seconds:g} s")
        self.api.silence()
        self.end_fault_in(seconds, self.api.resume)

    def deny_pods(self, seconds: float) -> None:
        self.history.note("api server", f"forbids to patch pods for {seconds:g} s")
        self.api.deny("patch", "pods")
        self.end_fault_in(seconds, lambda: self.api.allow("patch", "pods"))

    def deny_nodes(self, seconds: float) -> None:
        self.history.note("api server", f"forbids to patch nodes for {seconds:g} s")
        self.api.deny("patch", "nodes")
        self.api.deny("patch", "nodes/status")

        def allow() -> None:
            self.api.allow("patch", "nodes")
            self.api.allow("patch", "nodes/status")

        self.end_fault_in(seconds, allow)

    def forbid(self, verb_and_resource: str, seconds: float) -> None:
        """A role lacks a right for a while."""
        verb, resource = verb_and_resource.split()
        self.history.note("api server", f"forbids to {verb} {resource} for {seconds:g} s")
        self.api.deny(verb, resource)
        self.end_fault_in(seconds, lambda: self.api.allow(verb, resource))

    def step_clock(self, which: int, by_s: float) -> None:
        """The wall clock of a node, or of the machine of a replica, is set."""
        machines: list[SimulatedNode | Replica] = [*self.nodes, *self.replicas.replicas]
        machine = machines[which % len(machines)]
        machine.clock_wrong_by_s += by_s
        name = machine.name if isinstance(machine, SimulatedNode) else machine.host_name
        self.history.note(name, f"has its clock set by {by_s:+g} s")

    def slow_disk(self, which: int, most_s: float, seconds: float) -> None:
        """Each write to the disk of a node takes a while."""
        node = self.node_of(which)
        self.history.note(node.name, f"takes up to {most_s:g} s for each write to its disk, for {seconds:g} s")
        node.disk_s = most_s

        def speed_up() -> None:
            node.disk_s = 0.0

        self.end_fault_in(seconds, speed_up)

    def slow_agents(self, most_s: float, seconds: float) -> None:
        """As priority and fairness do it: each new request of an agent waits."""
        self.history.note("api server", f"takes up to {most_s:g} s for each request of an agent, for {seconds:g} s")
        self.api.slow_s = most_s
        self.end_fault_in(seconds, self._speed_up)

    def slow_lists(self, most_s: float, seconds: float) -> None:
        """Kubelets list what pods hold, and the answer comes so much later: what happens meanwhile is not in it."""
        self.history.note("kubelets", f"take up to {most_s:g} s to answer with a list, for {seconds:g} s")
        self._slow_answers(LISTS, SlowAnswers(most_s), seconds)

    def slow_some_lists(self, share: float, most_s: float, seconds: float) -> None:
        """The same with a share of the lists, so that admissions go on while one of them is late."""
        self.history.note("kubelets", f"take up to {most_s:g} s to answer with some lists, for {seconds:g} s")
        self._slow_answers(LISTS, SlowAnswers(most_s, share), seconds)

    def slow_calls(self, most_s: float, seconds: float) -> None:
        """Kubelet has to wait for the agent's answers, as on a node whose processors are busy."""
        self.history.note("kubelets", f"get the agents' answers up to {most_s:g} s late, for {seconds:g} s")
        self._slow_answers(PLUGIN_CALLS, SlowAnswers(most_s), seconds)

    def _slow_answers(self, methods: Sequence[str], slow: SlowAnswers, seconds: float) -> None:
        slow_answers.update(dict.fromkeys(methods, slow))

        def speed_up() -> None:
            for method in methods:
                slow_answers.pop(method, None)

        self.end_fault_in(seconds, speed_up)

    def press_disk(self, which: int, seconds: float, late_s: float) -> None:
        """A node runs out of disk space for a while: its kubelet rejects pods before it asks any plugin.

        It reports that so much later, because it writes a limited number of statuses a second.
        """
        node = self.node_of(which)
        node.periods.rejection = late_s
        self.history.note(f"{node.name} kubelet", f"rejects all pods for {seconds:g} s: the disk is full")
        node.has_disk_pressure = True

        def relieve() -> None:
            node.has_disk_pressure = False

        self.end_fault_in(seconds, relieve)

    def monitor(self, which: int, pause_s: float, seconds: float) -> None:
        """Another program lists what pods hold, again and again for a while, whatever kubelet is doing."""
        node = self.node_of(which)
        self.history.note(f"{node.name} monitor", f"lists kubelet's allocations every {pause_s:g} s for {seconds:g} s")
        node.run_monitor(pause_s, seconds)

    def restart_slow_agent(self, which: int, away_s: float, most_s: float) -> None:
        """An agent starts while its requests wait, so that kubelet asks it before it has read its pods."""
        self.slow_agents(most_s, away_s + SLOW_START_S)
        self.restart_agent(which, away_s)

    def _speed_up(self) -> None:
        self.api.slow_s = 0.0

    def drop_watches(self) -> None:
        self.history.note("api server", "breaks all watches")
        self.api.drop_watches()

    def expire_versions(self) -> None:
        self.history.note("api server", "forgets old versions")
        self.api.expire()

    def outdate_watches(self, seconds: float, are_broken: int) -> None:
        """Watches show nothing for a while. Then they end or break, and cannot go on where they were."""
        ends = "breaks" if are_broken else "ends"
        self.history.note("api server", f"says nothing on its watches for {seconds:g} s, and then {ends} them")
        self.api.silence()
        self.faults_end_at = max(self.faults_end_at, kernel().now + seconds)

        def forget() -> None:
            kernel().sleep(seconds)
            self.expire_versions()
            if are_broken:
                self.drop_watches()
            else:
                self.api.end_watches()
            # Until then, they would show what has changed.
            kernel().sleep(ENDED_S)
            self.api.resume()

        kernel().spawn(forget, "watches", self._people)

    def jump_clock(self, _which: int, seconds: float) -> None:
        self.history.note("world", f"every process stands still for {seconds:g} s")
        kernel().now += seconds
        self._held_checks.forget()

    def end_fault_in(self, seconds: float, act: Callable[[], object]) -> None:
        """End a fault of what stands between people and GPUs so much later."""
        self.faults_end_at = max(self.faults_end_at, kernel().now + seconds)
        self._after(seconds, act)

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        def wait_and_act() -> None:
            kernel().sleep(seconds)
            act()

        kernel().spawn(wait_and_act, "later", self._people)


def _decision(index: int, amount: int) -> dict[str, str]:
    """Annotations that give the first container of a pod so many units of a GPU."""
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        ALLOCATION: f'{{"0":{{"{index}":{amount}}}}}',
    }


def _init_container(kind: str, limits: Mapping[str, int]) -> Json:
    """An init container; a sidecar goes on beside the containers after it."""
    amounts = {resource: str(amount) for resource, amount in limits.items()}
    container: Json = {
        "name": f"{kind}-0",
        "image": "work",
        "resources": {"limits": amounts, "requests": amounts},
    }
    return container | ({"restartPolicy": "Always"} if kind == SIDECAR else {})


def _box(name: str, scenario: Scenario) -> Box:
    """The GPUs of a node."""
    box_of = linked_box if scenario.has_links else equal_gpus
    box = box_of(name, scenario.gpus, GIB_PER_GPU)
    if not scenario.limits:
        return box
    return replace(box, driver_version=f"{MEMORY_LIMITS_SINCE}.71.09", memory_limits=BackendName(scenario.limits))


def _limits(resource: str, amount: int, cores: int) -> dict[str, int]:
    limits = {resource: amount}
    if cores and resource != WHOLE:
        limits[CORES] = cores
    return limits


class _ErrorsToHistory(logging.Handler):
    """An exception in the product's log is a fault of the product."""

    def __init__(self, product: str, history: History) -> None:
        super().__init__(logging.ERROR)
        self._product = product
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info:
            return  # it reports a fault of the driver, for example
        error = record.exc_info[1]
        what = f"{record.getMessage()}: {type(error).__name__}: {error}"
        self._history.break_promise(f"{self._product} logs an error: {what}")
