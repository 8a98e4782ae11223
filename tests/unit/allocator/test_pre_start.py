"""PreStartContainer: the container is found in kubelet's allocations, and its isolation is verified."""

from dataclasses import replace

import pytest

from gpuagent.allocator.allocator_state import MOST_GIVEN
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet, kubelet_in_share
from tests.unit.domain.builders import (
    CORE,
    MEM,
    box,
    holding,
    in_force,
    owner,
    pod_json,
    unit_ids,
    uuid,
)

SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_container_waits_while_its_isolation_is_not_ready():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 1}))
    kubelet.serve(owner("a"), MEM, 1)
    kubelet.isolation.refuses_to_verify = "not yet"
    ids = kubelet.allocations.holdings[0].ids
    assert kubelet.refusal(lambda: kubelet.allocator.prestart(MEM, ids)).reason is Reason.ISOLATION
    kubelet.isolation.refuses_to_verify = None
    assert kubelet.allocator.prestart(MEM, ids) == owner("a")
    assert kubelet.isolation.verified == [owner("a")]


def test_a_container_is_identified_from_the_allocations_as_last_read():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 1}))
    kubelet.serve(owner("a"), MEM, 1)
    kubelet.node.now += 1
    kubelet.read_allocations()
    assert kubelet.allocator.prestart(MEM, kubelet.allocations.holdings[0].ids) == owner("a")
    assert kubelet.allocations.reads == 0


def test_allocations_read_before_the_call_do_not_identify():
    """The ids were another's then."""
    kubelet = kubelet_in_share(*box(1)).pods(
        pod_json("old", {MEM: 16}, created="1"), pod_json("new", {MEM: 16}, created="2")
    )
    kubelet.serve(owner("old"), MEM, 16)
    kubelet.node.now += 1
    kubelet.read_allocations()
    kubelet.end("old")
    kubelet.node.now += 1
    kubelet.pods(pod_json("new", {MEM: 16}))
    kubelet.serve(owner("new"), MEM, 16)
    assert kubelet.allocator.prestart(MEM, kubelet.allocations.holdings[0].ids) == owner("new")
    assert kubelet.allocations.reads == 1


def test_an_init_container_whose_units_are_reused_is_identified_by_its_pod():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)))
    ids = kubelet.prefer(MEM, 2)
    kubelet.allocator.allocate(MEM, ids)  # kubelet lists no ordinary init containers
    kubelet.serve(owner("a"), MEM, 4, must=ids)
    assert kubelet.allocator.prestart(MEM, ids) == ContainerRef(PodName("ml", "a"), "")


def test_a_container_that_kubelet_cannot_name_starts_nevertheless():
    kubelet = kubelet_in_share()
    kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 1))
    assert kubelet.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    kubelet.allocations.readable = False
    assert kubelet.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    assert kubelet.isolation.verified == [None, None]


@pytest.mark.parametrize(("resource", "device_id"), [(MEM, f"{uuid(0)}-_-7"), ("nvidia.com/gpu", uuid(0))])
def test_a_container_that_another_plugin_served_starts_again_without_ado(resource, device_id):
    kubelet = kubelet_in_share()
    kubelet.allocations.holdings = (holding("old", [device_id], resource),)
    assert kubelet.allocator.prestart(resource, [device_id]) is None
    assert kubelet.isolation.verified == []
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(resource, [device_id])).reason is Reason.UNKNOWN_DEVICE


def test_identity_corrects_a_wrong_guess():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 2}, created="1"), pod_json("b", {MEM: 2}, created="2"))
    ids = kubelet.prefer(MEM, 2)
    kubelet.allocator.allocate(MEM, ids)
    kubelet.allocations.holdings.append(holding("b", ids))
    assert kubelet.allocator.prestart(MEM, ids) == owner("b")
    kubelet.node.now += 1
    kubelet.read_allocations()
    assert [one.owner for one in kubelet.allocator.occupancy().tracker.recent] == [owner("b")]


def test_a_container_of_an_old_mode_may_start_again():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 1}))
    kubelet.serve(owner("a"), MEM, 1)
    kubelet.node.label("topology").wait(3)
    kubelet.read_allocations()
    assert kubelet.allocator.prestart(MEM, kubelet.allocations.holdings[0].ids) == owner("a")


def test_a_start_is_verified_for_what_the_container_was_given():
    kubelet = FakeKubelet(in_force(Mode.CGPU, box(1))).pods(pod_json("p", {MEM: 1}))
    given, at = [], {"PLACE": "old"}
    kubelet.isolation.prepare = lambda grant: replace(grant, env={**grant.env, **at})
    kubelet.isolation.verify = lambda grant, owner: given.append(grant.env.get("PLACE"))
    kubelet.serve(owner("p"), MEM, 1)
    at["PLACE"] = "new"
    kubelet.allocator.prestart(MEM, kubelet.allocations.holdings[0].ids)
    assert given == ["old"]


def test_after_a_restart_a_start_is_verified_for_what_kubelet_was_answered_then():
    """The driver may give other containers something else since: an MPS daemon in another directory."""
    kubelet = FakeKubelet(in_force(Mode.CGPU, box(1))).pods(pod_json("p", {MEM: 1}))
    ids = unit_ids(0, Kind.MEMORY_CGPU, 1)
    given: list[str | None] = []
    kubelet.isolation.verify = lambda grant, starting: given.append(grant.env.get("CUDA_MPS_PIPE_DIRECTORY"))
    former = {"CUDA_MPS_PIPE_DIRECTORY": "/var/run/gpuagent/mps"}
    kubelet.allocations.holdings.append(holding("p", ids))
    kubelet.allocations.checkpoint.append(CheckpointEntry("uid-p", "main", MEM, frozenset(ids), kept_env=former))
    kubelet.allocator.prestart(MEM, ids)
    assert given == ["/var/run/gpuagent/mps"]


@pytest.mark.parametrize(("mode", "driver"), [(Mode.CGPU, "all"), (Mode.SHARE, None)])
def test_kubelet_is_told_which_driver_a_container_depends_on(mode, driver):
    """Its checkpoint keeps that, so an agent that starts with another setting knows."""
    kubelet = FakeKubelet(in_force(mode, box(1))).pods(pod_json("p", {MEM: 1}))
    grant = kubelet.allocator.allocate(MEM, kubelet.prefer(MEM, 1))
    assert grant.annotations.get("gpuagent/isolation") == driver


def test_grants_are_remembered_to_a_bound():
    """A node that lives long grants without end. A stored grant is verified with what isolation added to it."""
    kubelet = kubelet_in_share(*box(4, MOST_GIVEN))
    verified: list[bool] = []
    kubelet.isolation.prepare = lambda grant: replace(grant, env={**grant.env, "PREPARED": "yes"})
    kubelet.isolation.verify = lambda grant, _owner: verified.append("PREPARED" in grant.env)
    units = [frozenset(unit_ids(n % 4, SHARE, n // 4)) for n in range(MOST_GIVEN + 10)]
    for ids in units:
        kubelet.allocator.allocate(MEM, ids)
        kubelet.node.now += 60
    kubelet.read_allocations()
    for ids in units:
        kubelet.allocator.prestart(MEM, ids)
    kept = [n for n, stored in enumerate(verified) if stored]
    assert len(verified) == len(units)
    assert kept == list(range(10, MOST_GIVEN + 10)), "the newest"


@pytest.mark.parametrize("shown", [True, False])
def test_the_driver_is_told_what_the_container_may_use(shown):
    """By all of its resources, where kubelet's checkpoint shows them: the call itself is about one of them."""
    kubelet = FakeKubelet(in_force(Mode.CORE_MEM, box(1))).pods(pod_json("p", {MEM: 4, CORE: 30}))
    kubelet.serve(owner("p"), MEM, 4)
    kubelet.serve(owner("p"), CORE, 30)
    holdings = kubelet.allocations.holdings
    entries = [CheckpointEntry("uid-p", "main", held.resource, held.ids) for held in holdings]
    kubelet.allocations.checkpoint = entries if shown else []
    told = []
    kubelet.isolation.verify = lambda grant, starting: told.append(starting.shares)
    for held in holdings:
        kubelet.allocator.prestart(held.resource, held.ids)
    assert told == [{uuid(0): GpuShare(4096, 30)} if shown else {}] * 2
