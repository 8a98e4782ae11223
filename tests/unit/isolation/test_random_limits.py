"""Random lives of pods against a model of NVIDIA's accounting: nobody gets more than its share by more than one audit."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.host.cgroups import PodsRoot
from gpuagent.host.limits_client import (
    NO_LIMIT,
    BelowUseError,
    Limit,
    LimitDriverError,
    LimitsError,
    NoTargetError,
    Target,
)
from gpuagent.isolation.limits.plan import Backend, PodPlan, pod_plan
from gpuagent.isolation.limits.pods import Outcome, PodLimits
from gpuagent.simulation.memory_accounting import (
    AddressPool,
    BackendName,
    MemoryAccounting,
    Refusal,
    RefusedError,
)

GPUS = ("GPU-a", "GPU-b")
UNIT = 2**24
"""Bytes. Limits that differ by less than 2 MiB count as equal, because the driver may round them."""
CAPACITY = 100 * UNIT
NAMES = ("main", "side", "third")


@dataclass
class Container:
    name: str
    leaf: str
    client: int


@dataclass
class Pod:
    uid: str
    shares: PodShares
    plan: PodPlan
    in_force: Mapping[str, int] = field(default_factory=dict)
    running: dict[str, Container] = field(default_factory=dict)
    unlimited: bool = False


class ModelDriver:
    """The helper over the model: what it answers about cgroups that are directories of the test."""

    def __init__(self, model: MemoryAccounting, root: PodsRoot) -> None:
        self.model = model
        self._root = root

    def _path(self, target: Target) -> str:
        directory = self._root.pod_directory(target.pod)
        if directory is None:
            raise NoTargetError("the pod has ended")
        path = directory / target.leaf if target.leaf else directory
        if str(path) not in self.model:
            raise NoTargetError("the container has ended")
        return str(path)

    def set(self, target: Target, size: int) -> Limit:
        path = self._path(target)
        try:
            self.model.set_limits(target.gpu, path, 0, size)
        except RefusedError as err:
            if err.refusal is Refusal.INVALID_LIMIT:
                used = self.model.limits(target.gpu, path).used
                raise BelowUseError("more is in use", used) from err
            raise LimitDriverError(str(err)) from err
        return self._limit(target.gpu, path)

    def _limit(self, gpu: str, path: str) -> Limit:
        try:
            limits = self.model.limits(gpu, path)
        except RefusedError:
            return Limit(None, 0)  # on misc, NVML answers so for a cgroup without a limit
        return Limit(None if limits.hard == NO_LIMIT else limits.hard, limits.used)

    def get_many(self, targets: Iterable[Target]) -> dict[Target, Limit | LimitsError]:
        answers: dict[Target, Limit | LimitsError] = {}
        for target in targets:
            try:
                answers[target] = self._limit(target.gpu, self._path(target))
            except LimitsError as err:
                answers[target] = err
        return answers


shares_of_pods = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.tuples(st.integers(1, 15), st.integers(1, 15), st.integers(1, 15)),
)


class Life(RuleBasedStateMachine):
    backend: Backend

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.root = PodsRoot(self.folder / "kubepods")
        self.root.path.mkdir()
        # Few addresses, so that most cgroups get one that was used before.
        self.model = MemoryAccounting(
            BackendName(str(self.backend)),
            dict.fromkeys(GPUS, CAPACITY),
            root=str(self.root.path),
            addresses=AddressPool(seed, reused=1.0),
        )
        self.limits = PodLimits(ModelDriver(self.model, self.root), self.root, self.backend)
        self.pods: dict[str, Pod] = {}
        self.numbers = count(1)
        self.audited = True

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # -- the world -------------------------------------------------------------------------------------------

    def _make(self, path: Path) -> None:
        path.mkdir()
        self.model.add_cgroup(str(path), str(path.parent))

    def _remove(self, path: Path) -> None:
        path.rmdir()
        self.model.remove_cgroup(str(path))

    def _directory(self, pod: Pod) -> Path:
        return self.root.path / f"pod{pod.uid}"

    def _settle(self, pod: Pod, names: Mapping[str, str]) -> Outcome:
        outcome = self.limits.settle(pod.uid, pod.plan, names, pod.in_force)
        pod.unlimited = bool(outcome.unlimited)
        if not outcome.unlimited and not outcome.refused:
            pod.in_force = dict(pod.plan.pod)
        return outcome

    def _names(self, pod: Pod) -> dict[str, str]:
        return {container.leaf: container.name for container in pod.running.values()}

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(sizes=shares_of_pods, gpu=st.sampled_from(GPUS))
    def admit(self, sizes: tuple[int, ...], gpu: str) -> None:
        taken = sum(pod.shares.total.get(gpu, 0) for pod in self.pods.values())
        total = sum(sizes) * UNIT
        if taken + total > CAPACITY or len(self.pods) > 4:
            return
        number = next(self.numbers)
        containers = {name: {gpu: size * UNIT} for name, size in zip(NAMES, sizes, strict=False)}
        shares = PodShares({gpu: total}, containers)
        uid = f"{number:08d}-0000-4000-8000-000000000000"
        pod = Pod(uid, shares, pod_plan(shares, self.backend))
        self._make(self._directory(pod))
        self._make(self._directory(pod) / f"{number * 100:064x}")
        self.pods[uid] = pod

    @rule(data=st.data(), in_time=st.booleans())
    def start(self, data: st.DataObject, in_time: bool) -> None:
        """Kubelet asks, makes the cgroup, and starts the container; the watch may come late."""
        waiting = [
            (pod, name) for pod in self.pods.values() for name in pod.shares.containers if name not in pod.running
        ]
        if not waiting:
            return
        pod, name = data.draw(st.sampled_from(waiting))
        if self._settle(pod, self._names(pod)).unlimited:
            return  # the container waits
        number = next(self.numbers)
        leaf = f"{number:064x}"
        self._make(self._directory(pod) / leaf)
        pod.running[name] = Container(name, leaf, number)
        if in_time:
            self._settle(pod, self._names(pod))
        else:
            self._leaf_may_differ()

    def _leaf_may_differ(self) -> None:
        """A container has a limit of its own that is not as planned. On backend dmem, its pod's holds nevertheless."""
        if self.backend is Backend.MISC:
            self.audited = False

    @rule(data=st.data(), units=st.integers(1, 60), is_nested=st.booleans())
    def allocate(self, data: st.DataObject, units: int, is_nested: bool) -> None:
        running = [(pod, container) for pod in self.pods.values() for container in pod.running.values()]
        if not running:
            return
        pod, container = data.draw(st.sampled_from(running))
        path = self._directory(pod) / container.leaf
        if is_nested:
            path /= "nested"
            if not path.exists():
                self._make(path)
        gpu = next(iter(pod.shares.total))
        try:
            self.model.allocate(container.client, gpu, units * UNIT, task=str(path), creator=str(path))
        except RefusedError:
            return

    @rule(data=st.data())
    def end_container(self, data: st.DataObject) -> None:
        running = [(pod, container) for pod in self.pods.values() for container in pod.running.values()]
        if running:
            pod, container = data.draw(st.sampled_from(running))
            self._end(pod, container)

    def _end(self, pod: Pod, container: Container) -> None:
        self.model.close(container.client)
        path = self._directory(pod) / container.leaf
        if (path / "nested").exists():
            self._remove(path / "nested")
        self._remove(path)
        del pod.running[container.name]

    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        if not self.pods:
            return
        pod = data.draw(st.sampled_from(list(self.pods.values())))
        for container in list(pod.running.values()):
            self._end(pod, container)
        directory = self._directory(pod)
        for sandbox in list(directory.iterdir()):
            self._remove(sandbox)
        self._remove(directory)
        del self.pods[pod.uid]

    @rule(data=st.data())
    def forge(self, data: st.DataObject) -> None:
        """NVIDIA's hook sets what a tenant's environment says."""
        running = [(pod, container) for pod in self.pods.values() for container in pod.running.values()]
        if not running:
            return
        pod, container = data.draw(st.sampled_from(running))
        gpu = next(iter(pod.shares.total))
        path = str(self._directory(pod) / container.leaf)
        self.model.set_limits(gpu, path, 0, CAPACITY)
        self._leaf_may_differ()

    @rule(gpu=st.sampled_from(GPUS))
    def reset(self, gpu: str) -> None:
        self.model.tear_down(gpu)
        self.audited = False

    @rule()
    def restart_agent(self) -> None:
        for pod in self.pods.values():
            pod.in_force = {}

    @rule()
    def audit(self) -> None:
        for pod in self.pods.values():
            self._settle(pod, self._names(pod))
        self.audited = True

    # -- what must hold --------------------------------------------------------------------------------------

    def _use(self, pod: Pod, gpu: str) -> int:
        return sum(self.model.allocated_by(container.client, gpu) for container in pod.running.values())

    @invariant()
    def nobody_has_more_than_its_share(self) -> None:
        if not hasattr(self, "pods"):
            return
        for pod in self.pods.values():
            for gpu, total in pod.shares.total.items():
                has_more = self._use(pod, gpu) > total
                if has_more and self.audited:
                    assert pod.unlimited, f"{pod} has {self._use(pod, gpu)} of {total} and nobody says so"


class DmemLife(Life):
    backend = Backend.DMEM


class MiscLife(Life):
    backend = Backend.MISC


@pytest.mark.parametrize("life", [DmemLife, MiscLife])
def test_no_life_gives_a_pod_more_than_its_share(life):
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        life, settings=settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=health)
    )
