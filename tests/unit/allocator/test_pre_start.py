"""PreStartContainer: the container is found in kubelet's allocations, and its isolation is verified."""

from dataclasses import replace

import pytest

from gpuagent.allocator.memory import MOST_GIVEN
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.desk import NodeWithKubelet, share_desk
from tests.unit.domain.builders import (
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
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.isolation.refuses_to_verify = "not yet"
    ids = desk.book.holdings[0].ids
    assert desk.refusal(lambda: desk.allocator.prestart(MEM, ids)).reason is Reason.ISOLATION
    desk.isolation.refuses_to_verify = None
    assert desk.allocator.prestart(MEM, ids) == owner("a")
    assert desk.isolation.verified == [owner("a")]


def test_a_container_is_identified_from_the_book_as_last_read():
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.node.now += 1
    desk.read_book()
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("a")
    assert desk.book.reads == 0


def test_a_book_read_before_the_handout_does_not_identify():
    """The ids were another's then."""
    desk = share_desk(*box(1)).pods(pod_json("old", {MEM: 16}, created="1"), pod_json("new", {MEM: 16}, created="2"))
    desk.serve(owner("old"), MEM, 16)
    desk.node.now += 1
    desk.read_book()
    desk.end("old")
    desk.node.now += 1
    desk.pods(pod_json("new", {MEM: 16}))
    desk.serve(owner("new"), MEM, 16)
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("new")
    assert desk.book.reads == 1


def test_an_init_container_whose_units_are_reused_is_identified_by_its_pod():
    desk = share_desk().pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)))
    ids = desk.prefer(MEM, 2)
    desk.allocator.allocate(MEM, ids)  # kubelet's book lists no ordinary init containers
    desk.serve(owner("a"), MEM, 4, must=ids)
    assert desk.allocator.prestart(MEM, ids) == ContainerRef(PodName("ml", "a"), "")


def test_a_container_that_kubelet_cannot_name_starts_all_the_same():
    desk = share_desk()
    desk.allocator.allocate(MEM, unit_ids(0, SHARE, 1))
    assert desk.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    desk.book.readable = False
    assert desk.allocator.prestart(MEM, unit_ids(0, SHARE, 1)) is None
    assert desk.isolation.verified == [None, None]


@pytest.mark.parametrize(("resource", "device_id"), [(MEM, f"{uuid(0)}-_-7"), ("nvidia.com/gpu", uuid(0))])
def test_a_container_that_another_plugin_served_starts_again_without_ado(resource, device_id):
    desk = share_desk()
    desk.book.holdings = (holding("old", [device_id], resource),)
    assert desk.allocator.prestart(resource, [device_id]) == owner("old")
    assert desk.isolation.verified == []
    assert desk.refusal(lambda: desk.allocator.allocate(resource, [device_id])).reason is Reason.UNKNOWN_DEVICE


def test_identity_corrects_a_wrong_guess():
    desk = share_desk().pods(pod_json("a", {MEM: 2}, created="1"), pod_json("b", {MEM: 2}, created="2"))
    ids = desk.prefer(MEM, 2)
    desk.allocator.allocate(MEM, ids)
    desk.book.holdings.append(holding("b", ids))
    assert desk.allocator.prestart(MEM, ids) == owner("b")
    desk.node.now += 1
    desk.read_book()
    assert [one.owner for one in desk.allocator.view().tracker.recent.all] == [owner("b")]


def test_a_container_of_an_old_mode_may_start_again():
    desk = share_desk().pods(pod_json("a", {MEM: 1}))
    desk.serve(owner("a"), MEM, 1)
    desk.node.label("topology").wait(3)
    desk.read_book()
    assert desk.allocator.prestart(MEM, desk.book.holdings[0].ids) == owner("a")


def test_a_start_is_verified_for_what_the_container_was_given():
    desk = NodeWithKubelet(in_force(Mode.CGPU, box(1))).pods(pod_json("p", {MEM: 1}))
    given, at = [], {"PLACE": "old"}
    desk.isolation.prepare = lambda grant: replace(grant, env={**grant.env, **at})
    desk.isolation.verify = lambda grant, owner: given.append(grant.env.get("PLACE"))
    desk.serve(owner("p"), MEM, 1)
    at["PLACE"] = "new"
    desk.allocator.prestart(MEM, desk.book.holdings[0].ids)
    assert given == ["old"]


def test_grants_are_remembered_to_a_bound():
    """A node that lives long grants without end. A stored grant is verified with what isolation added to it."""
    desk = share_desk(*box(4, MOST_GIVEN))
    verified: list[bool] = []
    desk.isolation.prepare = lambda grant: replace(grant, env={**grant.env, "PREPARED": "yes"})
    desk.isolation.verify = lambda grant, _owner: verified.append("PREPARED" in grant.env)
    units = [frozenset(unit_ids(n % 4, SHARE, n // 4)) for n in range(MOST_GIVEN + 10)]
    for ids in units:
        desk.allocator.allocate(MEM, ids)
        desk.node.now += 60
    desk.read_book()
    for ids in units:
        desk.allocator.prestart(MEM, ids)
    kept = [n for n, stored in enumerate(verified) if stored]
    assert len(verified) == len(units)
    assert kept == list(range(10, MOST_GIVEN + 10)), "the newest"
