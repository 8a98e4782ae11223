"""Random lives of pods, with the real keeper and the helper's guard, against a model of NVIDIA's accounting.

Whatever happens, and in whatever order: once it is quiet, each container can take its share, no pod can take more than
its own, and no pod without a share is limited. What an attacker takes beyond that is reported.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.host.cgroup_watch import Appeared
from gpuagent.host.cgroups import PodsRoot
from gpuagent.host.limits_client import Description, Target
from gpuagent.isolation.interface import Need
from gpuagent.isolation.limits.keeper import AUDIT_S, LimitsKeeper
from gpuagent.isolation.limits.plan import Backend
from gpuagent.isolation.limits.pods import PodLimits
from gpuagent.limits_helper.newborn_guard import NewbornGuard
from gpuagent.simulation.memory_accounting import AddressPool, BackendName, MemoryAccounting, RefusedError
from tests.unit.domain.builders import gpu
from tests.unit.isolation.test_random_limits import CAPACITY, UNIT, ModelDriver

GPUS = tuple(gpu(index) for index in range(2))
SHARES = (4, 8, 12)
WITH_SHARE = ("main", "side", "third")
WITHOUT_SHARE = ("proxy", "debugger")
MOST_PODS = 6
STEPS = 40


@dataclass(frozen=True, kw_only=True)
class Dangers:
    """What may happen in a life beside the usual.

    Attributes:
        sidecars: containers without a share reach the driver, and take what they get.
        forged: NVIDIA's hook sets limits from the environment of containers.
        failing: containers fail after kubelet has asked about them, before they have a cgroup.
        restarts: the agent is restarted, and may hear of the containers of pods late.
        resets: GPUs are reset, and their programs end.
        unasked: a restarted kubelet starts containers without asking.
        resizes: shares are changed while their containers run.
        claims: pods with one container may have their share by a claim.
    """

    sidecars: bool = False
    forged: bool = False
    failing: bool = False
    restarts: bool = False
    resets: bool = False
    unasked: bool = False
    resizes: bool = False
    claims: bool = False


class DriverWithGuard(ModelDriver):
    """Also what the helper's guard asks of the helper."""

    def __init__(self, model: MemoryAccounting, root: PodsRoot) -> None:
        super().__init__(model, root)
        self._told: set[Target] = set()

    def set(self, target: Target, size: int):
        self._told.add(target)
        return super().set(target, size)

    def get(self, target: Target):
        return self._limit(target.gpu, self._path(target))

    def has_set(self, target: Target) -> bool:
        return target in self._told

    def limited_gpus(self, _pod: str) -> frozenset[str]:
        return frozenset()

    def limit_of(self, uuid: str, path: Path) -> int | None:
        return self._limit(uuid, str(path)).hard


class SameThread:
    """In place of the helper's thread for the driver."""

    def run(self, function: Callable[[], Any]) -> Any:
        return function()


class SilentWatch:
    """In place of the kernel's events: the life delivers them."""

    def __init__(self, watches: "Watches", appeared: Appeared) -> None:
        self.appeared = appeared
        self._watches = watches
        self._pods: set[str] = set()
        self._sees_all = False

    def start(self) -> None: ...

    def stop(self) -> None:
        self._watches.every.remove(self)

    def add(self, uid: str, _directory: Path) -> None:
        self._pods.add(uid)

    def add_pods_of(self, _root: PodsRoot) -> None:
        self._sees_all = True

    def sees(self, uid: str) -> bool:
        return self._sees_all or uid in self._pods


class Watches:
    """Those of the agent and of the helper's guard."""

    def __init__(self) -> None:
        self.every: list[SilentWatch] = []

    def make(self, appeared: Appeared, _rescan: object, **_: object) -> SilentWatch:
        watch = SilentWatch(self, appeared)
        self.every.append(watch)
        return watch


@dataclass
class Container:
    name: str
    path: Path
    is_shown: bool = False


@dataclass
class Pod:
    uid: str
    gpu: str
    shares: PodShares
    names: list[str]
    path: Path
    sandbox: Path
    is_older: bool = False
    running: dict[str, Container] = field(default_factory=dict)
    allocated: dict[str, int] = field(init=False)
    most: dict[str, int] = field(init=False)
    is_resized: bool = False

    def __post_init__(self) -> None:
        """The largest limits that its containers were granted, which are at least what kubelet allocated."""
        self.allocated = {name: self.size(name) for name in self.shares.containers}
        self.most = self.allocated

    def size(self, name: str) -> int:
        return self.shares.containers.get(name, {}).get(self.gpu, 0)

    def shares_of(self, sizes: Mapping[str, int]) -> PodShares:
        return PodShares({self.gpu: sum(sizes.values())}, {name: {self.gpu: size} for name, size in sizes.items()})

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Grant shares. The former ones may be in force for a while."""
        self.most = {name: max(size, self.most[name]) for name, size in sizes.items()}
        self.shares = self.shares_of(sizes)
        self.is_resized = True

    def forget_former(self) -> None:
        """The shares are in force."""
        self.most = {name: max(self.size(name), size) for name, size in self.allocated.items()}


class Life:
    """A node, and what happens on it. `story` tells it."""

    def __init__(self, folder: Path, watches: Watches, backend: Backend, seed: int, dangers: Dangers) -> None:
        self.random = Random(seed)  # noqa: S311 (no secret)
        self.backend = backend
        self.dangers = dangers
        self.story: list[str] = []
        self.now = 0.0
        self.made = 0
        self.pods: dict[str, Pod] = {}
        self.root = PodsRoot(folder / "kubepods")
        self.root.path.mkdir()
        capacities = {each.uuid: CAPACITY for each in GPUS}
        self.model = MemoryAccounting(
            BackendName(str(backend)), capacities, root=str(self.root.path), addresses=AddressPool(seed)
        )
        self.driver = DriverWithGuard(self.model, self.root)
        self.watches = watches
        guard = NewbornGuard(self.driver, SameThread())
        guard.follow(Description("615", self.root.path, str(backend), {each.uuid: None for each in GPUS}, None))
        self.start_agent(knows_names=True)

    def start_agent(self, *, knows_names: bool) -> None:
        limits = PodLimits(self.driver, self.root, self.backend)
        self.keeper = LimitsKeeper(limits, lambda: None, clock=lambda: self.now)
        self.keeper.start()
        self.tell_need(knows_names=knows_names)
        self.keeper.look()

    def tell_need(self, *, knows_names: bool = True) -> None:
        shown = {
            container.path.name: container.name
            for pod in self.pods.values()
            for container in pod.running.values()
            if container.is_shown and knows_names
        }
        shares = {uid: pod.shares for uid, pod in self.pods.items() if pod.shares.total}
        resized = {uid: pod.shares_of(pod.most) for uid, pod in self.pods.items() if pod.is_resized}
        self.keeper.desire(Need(gpus=GPUS, pods=shares, knows_pods=True, containers=shown, resized=resized))

    # -- what happens ------------------------------------------------------------------------------------------

    def admit(self) -> None:
        uuid = self.random.choice(GPUS).uuid
        count = self.random.choice((0, 1, 1, 2, 3))
        sizes = {name: self.random.choice(SHARES) * UNIT for name in WITH_SHARE[:count]}
        if self.taken(uuid) + sum(sizes.values()) > CAPACITY or len(self.pods) == MOST_PODS:
            return
        without_share = WITHOUT_SHARE[: self.random.choice((0, 1, 2))] if sizes else ("whole",)
        of_claims = count == 1 and self.happens(self.dangers.claims, always=0.5)
        self.add(uuid, sizes, without_share, of_claims=of_claims)

    def taken(self, uuid: str) -> int:
        return sum(sum(pod.most.values()) for pod in self.pods.values() if pod.gpu == uuid)

    def add(
        self, uuid: str, sizes: Mapping[str, int], without_share: Iterable[str] = (), *, of_claims: bool = False
    ) -> Pod:
        """A pod whose containers with a share have these sizes."""
        names = [*sizes, *without_share]
        of_containers = {name: {uuid: size} for name, size in sizes.items()}
        total = {uuid: sum(sizes.values())}
        shares = PodShares(total, of_containers, of_claims=of_claims) if sizes else PodShares()
        uid = f"{self.number():08d}-0000-4000-8000-000000000000"
        directory = self.root.path / f"pod{uid}"
        pod = Pod(uid, uuid, shares, names, directory, directory / f"{self.number():064x}")
        units = {name: size // UNIT for name, size in sizes.items()}
        self.story.append(f"admit {uid[:8]} with {units}, {names}")
        self.pods[uid] = pod
        # The agent reads kubelet's allocations before kubelet makes the pod's cgroup.
        self.tell_need()
        self.make(directory)
        self.hear_of(pod)
        if of_claims:
            # Kubelet asks about the claim, before the pod's first container, and never about a container.
            self.keeper.limit(uid, shares, "")
        self.make(pod.sandbox)
        self.hear_of(pod, pod.sandbox)
        return pod

    def start(self) -> None:
        waiting = [(pod, name) for pod in self.pods.values() for name in pod.names if name not in pod.running]
        if not waiting:
            return
        pod, name = self.random.choice(waiting)
        is_asked = pod.size(name) and not pod.shares.of_claims and not self.happens(self.dangers.unasked)
        if is_asked:
            _, outcome = self.keeper.limit(pod.uid, pod.shares, name)
            if not outcome.is_in_force or self.happens(self.dangers.failing):
                self.story.append(f"{name} of {pod.uid[:8]} does not start: {outcome.unlimited or 'it fails'}")
                return
        container = self.run(pod, name)
        is_forged = bool(pod.shares.total) and self.happens(self.dangers.forged)
        is_early = self.happens(always=0.5)
        if is_forged and is_early:
            self.forge(pod, container)
        self.hear_of(pod, container.path)
        if is_forged and not is_early:
            self.forge(pod, container)

    def run(self, pod: Pod, name: str) -> Container:
        """A container has a cgroup, of which nobody has heard yet."""
        container = Container(name, pod.path / f"{self.number():064x}")
        self.make(container.path)
        pod.running[name] = container
        self.story.append(f"start {name} of {pod.uid[:8]} at {container.path.name[-3:]}")
        return container

    def hear_of(self, pod: Pod, leaf: Path | None = None) -> None:
        """Agent and helper hear of a cgroup before its first instruction, in either order."""
        hearing = [watch for watch in self.watches.every if watch.sees(pod.uid)]
        self.random.shuffle(hearing)
        for watch in hearing:
            watch.appeared(pod.uid, leaf.name if leaf else "")

    def forge(self, pod: Pod, container: Container) -> None:
        size = self.random.choice((CAPACITY, *[share * UNIT for share in SHARES]))
        self.story.append(f"the hook gives {container.name} of {pod.uid[:8]} {size // UNIT}")
        with suppress(RefusedError):
            self.model.set_limits(pod.gpu, str(container.path), 0, size)

    def use(self) -> None:
        running = [(pod, container) for pod in self.pods.values() for container in pod.running.values()]
        running = [(pod, container) for pod, container in running if self.reaches_gpu(pod, container)]
        if running:
            pod, container = self.random.choice(running)
            self.take(pod, container, self.random.choice((1, 2, 4, 8)))

    def reaches_gpu(self, pod: Pod, container: Container) -> bool:
        return bool(pod.size(container.name) or (pod.shares.total and self.dangers.sidecars))

    def take(self, pod: Pod, container: Container, units: float) -> bool:
        path = str(container.path)
        try:
            self.model.allocate(path, pod.gpu, int(units * UNIT), task=path, creator=path)
        except RefusedError:
            return False
        self.story.append(f"{container.name} of {pod.uid[:8]} takes {units}")
        return True

    def end_container(self) -> None:
        running = [(pod, container) for pod in self.pods.values() for container in pod.running.values()]
        if running:
            self.end(*self.random.choice(running))

    def end(self, pod: Pod, container: Container) -> None:
        self.story.append(f"end {container.name} of {pod.uid[:8]}")
        self.model.close(str(container.path))
        self.remove(container.path)
        del pod.running[container.name]

    def end_pod(self) -> None:
        if not self.pods:
            return
        pod = self.random.choice(list(self.pods.values()))
        for container in list(pod.running.values()):
            self.end(pod, container)
        self.story.append(f"end {pod.uid[:8]}")
        self.remove(pod.sandbox)
        self.remove(pod.path)
        del self.pods[pod.uid]
        self.tell_need()

    def show(self) -> None:
        """The API server shows some of the containers."""
        for pod in self.pods.values():
            for container in pod.running.values():
                container.is_shown = container.is_shown or self.happens(always=0.5)
        self.tell_need()

    def wait(self) -> None:
        self.now += self.random.choice((0.1, 0.5, 2.0, AUDIT_S + 1))
        self.keeper.look()
        for pod in self.pods.values():
            if self.keeper.findings.applied.get(pod.uid) == pod.shares:
                pod.forget_former()
        self.tell_need()

    def resize(self) -> None:
        """An operator changes the share of a container."""
        pods = [pod for pod in self.pods.values() if pod.shares.total and pod.running]
        if not pods:
            return
        pod = self.random.choice(pods)
        sizes = {name: pod.size(name) for name in pod.allocated}
        name = self.random.choice(list(sizes))
        sizes[name] = self.random.choice((2, *SHARES)) * UNIT
        grown = max(sizes[name] - pod.most[name], 0)
        if self.taken(pod.gpu) + grown <= CAPACITY:
            self.story.append(f"resize {name} of {pod.uid[:8]} to {sizes[name] // UNIT}")
            pod.resize(sizes)
            self.tell_need()

    def restart_agent(self) -> None:
        knows_names = self.happens(always=0.5)
        self.story.append("the agent is restarted" if knows_names else "the agent is restarted, and knows no names yet")
        for pod in self.pods.values():
            pod.is_older = True
        self.keeper.stop()
        self.start_agent(knows_names=knows_names)

    def reset(self) -> None:
        uuid = self.random.choice(GPUS).uuid
        self.story.append(f"reset {uuid}")
        for pod in self.pods.values():
            for container in list(pod.running.values()):
                if pod.gpu == uuid:
                    self.end(pod, container)
        self.model.tear_down(uuid)

    # -- how it happens ----------------------------------------------------------------------------------------

    def happens(self, danger: bool = True, *, always: float = 0.15) -> bool:
        return danger and self.random.random() < always

    def number(self) -> int:
        self.made += 1
        return self.made

    def make(self, path: Path) -> None:
        path.mkdir()
        self.model.add_cgroup(str(path), str(path.parent))

    def remove(self, path: Path) -> None:
        path.rmdir()
        self.model.remove_cgroup(str(path))

    def live(self) -> None:
        usual = [self.admit] * 3 + [self.start] * 8 + [self.use] * 6 + [self.end_container] * 3
        usual += [self.end_pod] + [self.show] * 3 + [self.wait] * 4
        if self.dangers.restarts:
            usual.append(self.restart_agent)
        if self.dangers.resets:
            usual.append(self.reset)
        if self.dangers.resizes:
            usual += [self.resize] * 4
        for _ in range(STEPS):
            self.random.choice(usual)()
        # Quiet: the API server shows every container, and two audits pass.
        for pod in self.pods.values():
            for container in pod.running.values():
                container.is_shown = True
        self.tell_need()
        for _ in range(2):
            self.now += AUDIT_S + 1
            self.keeper.look()

    # -- what must hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        for pod in self.pods.values():
            if not pod.shares.total:
                self.check_unlimited(pod)
            elif pod.uid not in self.keeper.findings.unlimited:
                self.check_share(pod)
            else:
                # A container that nobody asked about may begin before its pod is limited at all.
                is_explained = self.dangers.forged or self.dangers.sidecars or self.dangers.unasked
                assert is_explained, f"{self.keeper.findings.unlimited[pod.uid]}: {pod}"

    def check_unlimited(self, pod: Pod) -> None:
        for container in pod.running.values():
            for each in GPUS:
                # Another agent may have limited a pod that was there before this one.
                is_limited = pod.is_older and self.driver.limit_of(each.uuid, pod.path) is not None
                assert is_limited or self.driver.limit_of(each.uuid, container.path) is None, container

    def check_share(self, pod: Pod) -> None:
        """Have the containers take all that they get."""
        # Sidecars first: what they can take, the others may miss, but not the other way round.
        containers = sorted(pod.running.values(), key=lambda each: pod.size(each.name))
        for container in containers:
            while self.reaches_gpu(pod, container) and self.take(pod, container, 0.25):
                pass
        used = {each.name: self.model.allocated_by(str(each.path), pod.gpu) for each in containers}
        if pod.uid in self.keeper.findings.refused:
            # Its containers use more than the new share. So they keep the former one.
            assert pod.is_resized
            assert sum(used.values()) <= sum(pod.most.values()), (pod, used)
            return
        assert sum(used.values()) <= pod.shares.total[pod.gpu], (pod, used)
        assert not pod.is_resized or self.keeper.findings.applied.get(pod.uid) == pod.shares, pod
        # A container that nobody asked about may begin under its pod's limit, and an attacker may take from others.
        is_undisturbed = not (self.dangers.unasked or self.dangers.restarts or self.dangers.sidecars)
        if is_undisturbed:
            for name, amount in used.items():
                assert amount == pod.size(name), (name, pod, used)
