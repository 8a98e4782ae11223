"""The traps of NVIDIA's accounting, one by one, for the plan and the repairs of one pod."""

from pathlib import Path

import pytest

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.host.cgroups import PodsRoot
from gpuagent.host.limits_client import Target
from gpuagent.isolation.interface import CannotIsolateError
from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.plan import NO_SHARE_BYTES, Backend, PodPlan, Resized, pod_plan
from gpuagent.isolation.limits.pods import PodLimits
from gpuagent.simulation.memory_accounting import AddressPool, BackendName, MemoryAccounting, RefusedError
from tests.unit.isolation.test_random_limits import UNIT, ModelDriver

GPU = "GPU-a"
UID = "00000001-0000-4000-8000-000000000000"
LEAVES = {"main": "a" * 64, "side": "b" * 64, "proxy": "c" * 64}
TWO = PodShares({GPU: 12 * UNIT}, {"main": {GPU: 8 * UNIT}, "side": {GPU: 4 * UNIT}})
ONE = PodShares({GPU: 8 * UNIT}, {"main": {GPU: 8 * UNIT}})


def shares_of(**sizes: int) -> PodShares:
    """A pod with containers of these units."""
    containers = {name: {GPU: size * UNIT} for name, size in sizes.items()}
    return PodShares({GPU: sum(sizes.values()) * UNIT}, containers)


class World:
    """A pod, its containers and the driver's accounting."""

    def __init__(self, folder: Path, backend: Backend, shares: PodShares) -> None:
        self.root = PodsRoot(folder / "kubepods")
        self.root.path.mkdir()
        self.model = MemoryAccounting(
            BackendName(str(backend)), {GPU: 100 * UNIT}, root=str(self.root.path), addresses=AddressPool(0, reused=1.0)
        )
        self.driver = ModelDriver(self.model, self.root)
        self.limits = PodLimits(self.driver, self.root, backend)
        self.plan = pod_plan(shares, backend)
        self.directory = self.root.path / f"pod{UID}"
        self.make(self.directory)

    def make(self, path: Path) -> str:
        path.mkdir()
        self.model.add_cgroup(str(path), str(path.parent))
        return str(path)

    def container(self, name: str) -> str:
        return self.make(self.directory / LEAVES[name])

    def settle(self, former=None):
        names = {leaf: name for name, leaf in LEAVES.items()}
        return self.limits.settle(UID, self.plan, names, former or {})

    def take(self, name: str, units: int) -> bool:
        """Allocate in a container; whether the driver gave it."""
        path = str(self.directory / LEAVES[name])
        try:
            self.model.allocate(name, GPU, units * UNIT, task=path, creator=path)
        except RefusedError:
            return False
        return True


@pytest.fixture(params=list(Backend))
def backend(request) -> Backend:
    return request.param


def test_a_limit_below_the_use_is_seen_although_the_driver_says_nothing(tmp_path):
    world = World(tmp_path, Backend.DMEM, ONE)
    world.container("main")
    assert world.take("main", 20)
    outcome = world.settle()
    assert "it uses more GPU memory than its limit of 128 MiB" in outcome.unlimited[GPU]
    assert not world.take("main", 1), "a pod that has too much must not get more"


def test_a_late_limit_of_a_container_does_not_come_on_top_of_what_it_has(tmp_path):
    world = World(tmp_path, Backend.MISC, TWO)
    world.settle()
    world.container("main")
    assert world.take("main", 3)
    world.settle()
    world.container("side")
    world.settle()
    of_main = 3 + sum(1 for _ in range(20) if world.take("main", 1))
    assert of_main <= 8


def test_before_its_own_limit_a_container_gets_no_more_than_the_smallest_share(tmp_path):
    world = World(tmp_path, Backend.MISC, TWO)
    world.settle()
    world.container("side")
    assert not world.take("side", 4)
    assert world.take("side", 3)


@pytest.mark.parametrize("sizes", [{"main": 4, "side": 4}, {"main": 8, "side": 4}, {"main": 4, "side": 8}])
def test_each_container_gets_its_share_whatever_the_others_use(tmp_path, backend, sizes):
    """On misc, also one whose share is as small as its pod's limit needs a limit of its own."""
    world = World(tmp_path, backend, shares_of(**sizes))
    for name in ("main", "side"):
        world.settle()
        world.container(name)
        world.settle()
        assert world.take(name, 1)
    world.settle()
    for name, size in sizes.items():
        assert world.take(name, size - 1), name
    for name in sizes:
        assert not world.take(name, 1), name


@pytest.mark.parametrize("forged_units", [1, 8, 90])
@pytest.mark.parametrize("shares", [ONE, TWO])
def test_a_container_without_a_share_adds_nothing_to_its_pods(tmp_path, shares, forged_units):
    """It may have a limit of its own, from a dead container or its environment. On misc, that would come on top."""
    world = World(tmp_path, Backend.MISC, shares)
    world.settle()
    of_proxy = world.container("proxy")
    world.model.set_limits(GPU, of_proxy, 0, forged_units * UNIT)
    for name in shares.containers:
        world.container(name)
    world.settle()
    for name, share in shares.containers.items():
        assert world.take(name, share[GPU] // UNIT)
    assert not world.take("proxy", 1)


def test_a_container_that_has_too_much_gets_no_more(tmp_path):
    """On misc, a limit of its own replaces the pod's, so that has to be contained."""
    world = World(tmp_path, Backend.MISC, ONE)
    world.settle()
    of_main = world.container("main")
    world.model.set_limits(GPU, of_main, 0, 40 * UNIT)
    assert world.take("main", 9)
    assert world.settle().unlimited
    assert not world.take("main", 1)
    assert world.settle().unlimited


@pytest.mark.parametrize("used", [2, 6])
def test_containers_that_cannot_be_named_yet_keep_their_limits(tmp_path, used):
    """An agent that starts may know kubelet's allocations before the API server tells it the containers."""
    world = running(tmp_path, Backend.MISC)
    assert world.take("main", used)
    nameless = world.limits.settle(UID, world.plan, {}, {})
    assert nameless.unlimited == {}
    world.settle()
    assert world.take("main", 8 - used)
    assert world.take("side", 4)


def test_a_container_without_a_share_gets_nothing_beside_those_with_one():
    plan = pod_plan(TWO, Backend.MISC)
    assert plan.container_limit(GPU, "proxy") == NO_SHARE_BYTES
    assert plan.container_limit(GPU, None) is None
    assert pod_plan(TWO, Backend.DMEM).container_limit(GPU, "proxy") is None


def test_a_container_is_not_born_with_a_dead_pods_limit(tmp_path):
    world = World(tmp_path, Backend.MISC, ONE)
    dead = world.make(tmp_path / "kubepods" / "dead")
    world.model.set_limits(GPU, dead, 0, 50 * UNIT)
    Path(dead).rmdir()
    world.model.remove_cgroup(dead)
    world.settle()
    world.container("main")
    outcome = world.settle()
    assert outcome.repaired[Why.DIFFERENT] == 1
    assert not world.take("main", 9)
    assert world.take("main", 8)


def test_a_new_container_without_a_limit_of_its_own_is_no_repair(tmp_path, backend):
    """Otherwise every start would count, and nobody could see in the metric that limits are changed."""
    world = World(tmp_path, backend, TWO)
    world.settle()
    for name in TWO.containers:
        world.container(name)
        assert not world.settle().repaired
    world.model.set_limits(GPU, str(world.directory / LEAVES["main"]), 0, 50 * UNIT)
    assert world.settle().repaired == {Why.DIFFERENT: 1}


def test_an_ended_pod_leaves_no_unlimited_entry_to_be_inherited(tmp_path):
    """A limit is never reset to "none" on backend misc, because the entry would outlive the cgroup."""
    world = World(tmp_path, Backend.MISC, ONE)
    world.settle()
    world.container("main")
    world.settle()
    for leaf in (Target(GPU, UID), Target(GPU, UID, LEAVES["main"])):
        assert world.driver.get_many([leaf])[leaf].hard == 8 * UNIT


def test_containers_that_use_one_share_together_have_it_once(tmp_path):
    pooled = PodShares({GPU: 8 * UNIT}, {"main": {GPU: 8 * UNIT}, "side": {GPU: 8 * UNIT}}, frozenset({GPU}))
    with pytest.raises(CannotIsolateError, match="share of its own"):
        pod_plan(pooled, Backend.MISC)
    world = World(tmp_path, Backend.DMEM, pooled)
    world.settle()
    for name in pooled.containers:
        world.container(name)
        world.settle()
    assert world.take("main", 5)
    assert not world.take("side", 4)
    assert world.take("side", 3)


def test_what_the_nearest_limit_cannot_express_is_refused():
    mixed = PodShares({GPU: 12 * UNIT}, {**TWO.containers, "third": {GPU: 4 * UNIT}}, frozenset({GPU}))
    with pytest.raises(CannotIsolateError, match="share of its own"):
        pod_plan(mixed, Backend.MISC)
    assert pod_plan(mixed, Backend.DMEM).pod == {GPU: 12 * UNIT}


class ResizedWorld(World):
    """A pod with the shares `TWO`, of which `most` is the largest that it was granted."""

    def resize(self, shares: PodShares, most: PodShares, *, restarted: bool = False):
        former = PodPlan() if restarted else self.plan
        self.plan = pod_plan(shares, self.limits.backend)
        names = {leaf: name for name, leaf in LEAVES.items()}
        resized = Resized(former, pod_plan(most, self.limits.backend))
        return self.limits.settle(UID, self.plan, names, former.pod, resized)


def resized(main: int, side: int = 4) -> PodShares:
    return shares_of(main=main, side=side)


def running(tmp_path: Path, backend: Backend) -> ResizedWorld:
    world = ResizedWorld(tmp_path, backend, TWO)
    world.settle()
    for name in TWO.containers:
        world.container(name)
        world.settle()
    return world


def test_a_container_that_runs_gets_a_larger_limit(tmp_path, backend):
    world = running(tmp_path, backend)
    assert world.take("main", 8)
    outcome = world.resize(resized(12), resized(12))
    assert outcome.is_in_force
    assert set(outcome.repaired) == {Why.RESIZED}
    assert world.take("main", 4)
    assert world.take("side", 4)
    assert not world.take("main", 1)


def test_a_container_gets_a_smaller_limit_unless_it_uses_more(tmp_path, backend):
    world = running(tmp_path, backend)
    assert world.take("main", 6)
    assert world.take("side", 4)
    outcome = world.resize(resized(4), resized(8))
    assert "it uses" in outcome.refused[GPU]
    assert outcome.unlimited == {}, "its former limit was granted, so it is no escape"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_refused_limit_is_no_escape_after_a_restart_of_the_agent_either(tmp_path, backend, restarted):
    world = running(tmp_path, backend)
    world.resize(resized(12), resized(12))
    assert world.take("main", 12)
    assert world.take("side", 4)
    outcome = world.resize(resized(8), resized(12), restarted=restarted)
    assert outcome.refused
    assert outcome.unlimited == {}


def test_a_limit_beyond_what_was_granted_is_an_escape(tmp_path):
    world = running(tmp_path, Backend.MISC)
    world.resize(resized(12), resized(12))
    world.model.set_limits(GPU, str(world.directory / LEAVES["main"]), 0, 30 * UNIT)
    assert world.take("main", 20)
    outcome = world.resize(resized(12), resized(12))
    assert outcome.unlimited


def test_a_container_that_began_under_its_pods_limit_says_so(tmp_path):
    """It had no limit of its own when it began, so a larger one would come on top of what it uses."""
    world = ResizedWorld(tmp_path, Backend.MISC, TWO)
    world.settle()
    world.container("main")
    assert world.take("main", 2)
    world.settle()
    outcome = world.resize(resized(12), resized(12))
    assert "container main has no limit of its own" in outcome.refused[GPU]
    assert not outcome.is_in_force


def test_a_refused_smaller_share_does_not_come_on_top_of_what_is_in_use(tmp_path):
    """On misc, the container reads its pod's limit, which stays. One of its own would begin with no use."""
    world = ResizedWorld(tmp_path, Backend.MISC, ONE)
    world.settle()
    world.container("main")
    assert world.take("main", 8)
    for _ in range(2):
        assert world.resize(shares_of(main=2), ONE).refused
        assert not world.take("main", 1)


def test_a_pod_that_has_too_much_gets_no_more_through_its_containers(tmp_path, backend):
    world = World(tmp_path, backend, ONE)
    world.model.set_limits(GPU, str(world.directory), 0, 40 * UNIT)
    world.container("main")
    assert world.take("main", 20)
    for _ in range(2):
        assert world.settle().unlimited
        assert not world.take("main", 1)


def test_a_smaller_share_is_refused_although_others_of_the_pod_use_less(tmp_path, backend):
    """On dmem, the pod's limit may fit, and that of the container does not."""
    world = running(tmp_path, backend)
    assert world.take("main", 6)
    outcome = world.resize(resized(4), resized(8))
    assert "it uses more GPU memory than its limit of 64 MiB" in outcome.refused[GPU]
    assert not outcome.is_in_force


def test_a_larger_limit_of_a_container_without_a_name_is_not_in_force_for_certain(tmp_path):
    """Its extra units would go back to kubelet while it may still use them."""
    world = running(tmp_path, Backend.MISC)
    world.resize(resized(12), resized(12))
    assert world.take("main", 10)
    world.plan = pod_plan(TWO, Backend.MISC)
    nameless = world.limits.settle(UID, world.plan, {}, {}, Resized(PodPlan(), pod_plan(resized(12), Backend.MISC)))
    assert not nameless.is_certain
    assert not nameless.unlimited


@pytest.mark.parametrize("size", [4, 12])
def test_a_pod_whose_init_container_had_the_same_share_can_be_resized(tmp_path, backend, size):
    """Kubelet gives the units of an init container to the next one, so both together have them once."""
    before = PodShares({GPU: 8 * UNIT}, {"side": {GPU: 8 * UNIT}, "main": {GPU: 8 * UNIT}})
    after = PodShares({GPU: max(8, size) * UNIT}, {"side": {GPU: 8 * UNIT}, "main": {GPU: size * UNIT}})
    world = ResizedWorld(tmp_path, backend, before)
    world.settle()
    world.container("main")
    world.settle()
    assert world.take("main", 3)
    outcome = world.resize(after, PodShares({GPU: 12 * UNIT}, {**before.containers, "main": {GPU: 12 * UNIT}}))
    assert outcome.is_in_force
    assert world.take("main", size - 3)
    assert not world.take("main", 1)
