"""Placement `spread` in bursts: claims that come at once are spread, and no claim waits for ever because of it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.prepare import claimed_gpus
from gpuagent.domain.dra.resource_slice import slice_spec, slice_specs
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.node_state.spread_pace import LIFT_EVERY_S, LIFT_S, REST_S
from gpuagent.domain.placement.sharer_limits import GpuUse, sharer_limits
from gpuagent.domain.reconcile.slice_writes import slice_name
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.step import deadline
from tests.unit.domain.builders import box, in_force, pod_json, uuid
from tests.unit.domain.dra.scheduler_model import Scheduler

GIB = 2**30
TURNS = st.lists(st.integers(1, 9), min_size=1, max_size=20)


class SpreadNode:
    """A node under placement `spread`, and a scheduler that knows its slice as it was published last."""

    def __init__(self, count=8, gib=80, **policy):
        self.node = in_force(Mode.DRA, box(count, gib), isolates=frozenset(), **policy)
        self.node.label("dra", "spread").holdings()
        self.scheduler = Scheduler()
        self.prepared: dict[str, PreparedClaim] = {}
        self.names = {device["name"]: n for n, device in enumerate(self.devices)}
        self.publish()

    @property
    def devices(self):
        return slice_spec(self.node.state, "n")["devices"]

    @property
    def limits(self):
        return {self.names[one["name"]]: int(one["capacity"]["sharers"]["value"]) for one in self.devices}

    def publish(self):
        """The watch shows the slice, and the scheduler takes it from there."""
        self.published = slice_specs(self.node.state, "n")
        seen = {slice_name("n"): {"metadata": {"uid": "s", "resourceVersion": "1"}, "spec": self.published[""]}}
        self.node.send(ev.SlicesSeen(seen, self.node.now))

    def wait(self, seconds):
        """Let time pass, with a tick at each deadline."""
        end = self.node.now + seconds
        while (due := deadline(self.node.state)) is not None and due <= end:
            self.node.wait(max(0.0, due - self.node.now))
        self.node.wait(end - self.node.now)
        self.publish()

    def bind(self, *uids, sandboxed=(), deleting=()):
        """The node has pods with these claims. Kubelet has made the sandboxes of some."""
        pods = []
        for uid in uids:
            pod = pod_json(uid)
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": uid}]
            if uid in sandboxed:
                pod["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "True"}]
            if uid in deleting:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            pods.append(pod)
        self.node.pods(*pods)
        self.publish()

    def stick(self, count, **amounts):
        """So many claims are allocated and never prepared, as a ConfigMap of their pods is missing."""
        uids = [f"stuck{n}" for n in range(count)]
        for uid in uids:
            self.place(uid, **amounts)
            self.bind(*uids[: uids.index(uid) + 1])
        return uids

    def place(self, uid, **amounts):
        """Try the claim each second until it is allocated. Returns the seconds."""
        for second in range(1000):
            if self.allocate(uid, **amounts):
                return second
            self.wait(1)
        raise AssertionError(self.limits)

    def allocate(self, uid, gib=4, cores=0):
        amounts = {"memory": gib * GIB} | ({"cores": cores} if cores else {})
        return self.scheduler.allocate(uid, self.published, {"attributes": {"type": "gpu"}, "capacity": amounts})

    def prepare(self, *uids):
        gpus = self.node.state.gpus.by_uuid
        for uid in uids:
            claimed = claimed_gpus(self.scheduler.claim(uid), "n", gpus, MemoryUnit())
            self.prepared[uid] = PreparedClaim(uid=uid, namespace="ml", name=uid, layer="none", gpus=claimed)
        self.node.send(ev.ClaimsPrepared(tuple(self.prepared.values()), self.node.now))

    def run(self, uid, **amounts):
        assert self.allocate(uid, **amounts), self.limits
        self.prepare(uid)
        self.publish()

    def end(self, *uids):
        for uid in uids:
            self.scheduler.release(uid)
            del self.prepared[uid]
        self.prepare()
        self.publish()

    def shares(self):
        """How many claims each GPU has, most first."""
        taken = Counter(self.names[results[0]["device"]] for results in self.scheduler.results.values())
        return [taken[n] for n in range(len(self.names))]

    def burst(self, count, take=None, **amounts):
        """So many claims at once. Before each new slice, `take(waiting)` of the allocated claims are prepared."""
        waiting = [f"b{n}" for n in range(count)]
        allocated: list[str] = []
        renewals = 0
        while waiting or allocated:
            new = [uid for uid in waiting if self.allocate(uid, **amounts)]
            waiting = [uid for uid in waiting if uid not in new]
            allocated += new
            number = len(allocated) if take is None else take(len(allocated))
            self.prepare(*allocated[:number])
            allocated = allocated[number:]
            self.publish()
            renewals += 1
            assert renewals < 1000, (waiting, self.limits)
        return renewals


@pytest.mark.parametrize(("count", "each"), [(8, 1), (16, 2), (64, 8), (160, 20)])
def test_claims_that_come_at_once_are_spread_over_all_gpus(count, each):
    node = SpreadNode()
    assert node.burst(count) <= each
    assert node.shares() == [each] * 8


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([8, 16, 40]), TURNS)
def test_the_spread_is_even_in_whatever_order_the_claims_are_prepared(count, numbers):
    node, turn = SpreadNode(), iter(numbers * 100)
    node.burst(count, take=lambda allocated: min(allocated, next(turn)))
    assert node.shares() == [count // 8] * 8


def test_a_burst_fills_up_what_was_uneven():
    node = SpreadNode()
    for n in range(8):
        node.run(f"a{n}")
    node.end(*[f"a{n}" for n in range(1, 8)])
    for uid in ("c1", "c2"):
        node.run(uid, gib=1)
    node.wait(10)
    node.burst(16)
    assert max(node.shares()) - min(node.shares()) <= 1


def test_a_monitor_gets_every_gpu_although_some_are_used_more_than_others():
    """It asks for none of a GPU, but not even that fits beside more claims than the slice says."""
    node = SpreadNode(count=2)
    for n in range(6):
        node.place(f"a{n}")
        node.prepare(f"a{n}")
        node.publish()
    of_first = [uid for uid, claim in node.prepared.items() if claim.gpus[0].uuid == uuid(0)]
    node.end(*of_first)
    assert node.shares() == [0, 3]
    assert node.limits == {0: 1, 1: 3}


def test_binpack_has_no_such_limit():
    node = SpreadNode()
    node.node.label("dra", "binpack")
    assert {*node.limits.values()} == {20}


@pytest.mark.parametrize("out", ["whole", "unhealthy", "fenced", "full", "mig"])
def test_a_gpu_that_takes_no_claim_holds_no_other_back(out):
    node = SpreadNode(4)
    match out:
        case "whole":
            assert node.scheduler.allocate("w", node.published, {"attributes": {"type": "gpu"}})
            node.prepare("w")
        case "full":
            node.run("w", gib=80)
        case "unhealthy":
            node.node.send(ev.XidRaised(uuid(0), 79, node.node.now))
        case "fenced":
            node.node.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), node.node.now))
        case "mig":
            node.node.inventory(*[gpu for gpu in box(4, 80) if gpu.index])
    node.publish()
    node.burst(9)
    assert sorted(node.shares()) == [int(out in {"whole", "full"}), 3, 3, 3]


def test_memory_that_is_too_small_for_a_claim_does_not_keep_it_waiting():
    """GPU 0 has the fewest claims, and 10 GiB. The others can take the claim at once."""
    node = SpreadNode(3)
    node.run("large", gib=70)
    for n in range(4):
        node.run(f"s{n}", gib=20)
    assert node.allocate("next", gib=20)


def test_the_last_gpu_with_room_has_no_limit():
    """There is nothing to spread over. A pod with several claims need not wait."""
    node = SpreadNode(2)
    node.run("large", gib=80)
    assert {*node.limits.values()} == {20}
    assert {*SpreadNode(1).limits.values()} == {20}


def test_after_a_moment_each_gpu_takes_a_claim():
    """A claim of two GPUs, or of a certain one, does not wait until all others are as full."""
    node = SpreadNode(4)
    node.run("a")
    node.run("b")
    assert sorted(node.limits.values()) == [1, 1, 1, 1]
    node.wait(REST_S)
    assert sorted(node.limits.values()) == [1, 1, 2, 2]
    node.run("c")
    assert sorted(node.limits.values()) == [1, 1, 2, 2], "what waits keeps its chance"


def test_a_pod_that_needs_several_shares_of_a_gpu_gets_them_after_a_while():
    node = SpreadNode(2)
    most = 0
    for _ in range(int(LIFT_EVERY_S)):
        node.wait(1)
        most = max(most, *node.limits.values())
    assert most == 20


def test_the_limits_are_lifted_now_and_then_also_while_claims_come_and_go():
    node = SpreadNode(2)
    lifted = 0
    for second in range(300):
        node.run(f"c{second}", gib=1)
        node.wait(1)
        node.end(f"c{second}")
        lifted += {*node.limits.values()} == {20}
    assert 300 * LIFT_S / 60 * 0.7 <= lifted <= 300 * LIFT_S / 60 * 1.4


def test_a_quiet_node_writes_its_slice_seldom():
    node = SpreadNode(8)
    node.burst(16)
    node.wait(120)
    contents = set()
    changes = 0
    for _ in range(3600):
        node.wait(1)
        content = str(sorted(node.limits.items()))
        changes += content not in contents
        contents = {content}
    assert changes <= 2 * 3600 / LIFT_EVERY_S + 2


@pytest.mark.parametrize("stuck", [1, 8, 16, 40])
def test_claims_that_are_never_prepared_block_nobody_for_long(stuck):
    node = SpreadNode()
    node.stick(stuck, gib=1)
    levels = -(-stuck // 8)
    for n in range(16):
        assert node.place(f"c{n}") <= REST_S * levels + 1
        node.prepare(f"c{n}")
        node.publish()


def test_no_claim_waits_for_a_lift_because_of_claims_that_are_not_prepared():
    node = SpreadNode()
    node.stick(8)
    waits = node.place("next")
    assert waits <= REST_S + 1
    assert not node.node.state.claims.spread_pace.lifted


def test_a_claim_that_is_never_prepared_with_several_shares_of_each_gpu_makes_others_wait_for_a_lift_only():
    """The agent sees one claim, and not how many shares it has. Each lift lets in all that wait."""
    node = SpreadNode()
    while not node.node.state.claims.spread_pace.lifted:
        node.wait(1)
    for part in range(24):
        attributes = {"type": "gpu", "uuid": uuid(part % 8)}
        wanted = {"attributes": attributes, "capacity": {"memory": GIB}}
        assert node.scheduler.allocate(f"part{part}", node.published, wanted)
    node.bind("stuck")
    assert node.place("first") <= LIFT_EVERY_S + REST_S
    node.prepare("first")
    node.wait(LIFT_S + 1)
    assert node.place("second") <= LIFT_EVERY_S
    assert node.place("third") <= 1


def test_a_claim_on_the_gpu_with_the_unprepared_claims_finds_room_too():
    """All of them came to the only GPU that they fit on."""
    node = SpreadNode(2)
    node.run("large", gib=70)
    node.stick(4, gib=12)
    assert node.place("next", gib=12) <= REST_S + 1


def test_a_whole_gpu_that_is_not_prepared_holds_no_other_back_for_long():
    node = SpreadNode(4)
    node.stick(1, gib=80)
    began = node.node.now
    for n in range(12):
        node.place(f"c{n}")
        node.prepare(f"c{n}")
        node.publish()
    assert node.node.now - began <= REST_S * 4
    assert sorted(node.shares()) == [1, 4, 4, 4]


def test_a_pod_that_waits_for_ever_lets_a_burst_be_uneven_by_its_claims_only():
    node = SpreadNode()
    node.stick(1)
    node.wait(50)
    node.burst(63)
    assert max(node.shares()) - min(node.shares()) <= 2


@pytest.mark.parametrize("end", ["gone", "prepared", "started"])
def test_the_level_is_exact_again_when_no_claim_waits(end):
    node = SpreadNode()
    stuck = node.stick(8)
    node.wait(50)
    assert {*node.limits.values()} == {9}
    if end == "prepared":
        node.prepare(*stuck)
    else:
        node.bind(*stuck, sandboxed=stuck) if end == "started" else node.bind()
    node.wait(REST_S + 1)
    prepared = int(end == "prepared")
    assert {*node.limits.values()} == {prepared + 1}


def test_a_deleted_pod_waits_until_it_is_gone():
    node = SpreadNode()
    stuck = node.stick(8)
    node.bind(*stuck, deleting=stuck)
    assert node.place("next") <= REST_S + 1


def test_pods_that_start_in_time_change_nothing():
    node, other = SpreadNode(), SpreadNode()
    for n in range(16):
        uids = [f"c{k}" for k in range(n + 1)]
        for each in (node, other):
            assert each.allocate(uids[-1])
        node.bind(*uids, sandboxed=uids[:-1])
        for each in (node, other):
            each.wait(1)
            each.prepare(uids[-1])
            each.publish()
        assert node.limits == other.limits


def test_no_patience_grows_while_claims_are_prepared():
    node = SpreadNode()
    uids = [f"c{n}" for n in range(24)]
    node.bind(*uids)
    for uid in uids:
        assert node.allocate(uid)
        node.wait(1)
        node.prepare(uid)
        node.publish()
    assert node.shares() == [3] * 8


def test_a_quiet_node_with_pods_that_wait_writes_its_slice_seldom():
    node = SpreadNode()
    stuck = node.stick(8)
    node.wait(120)
    contents = set()
    changes = 0
    for second in range(900):
        node.bind(*stuck, "other", sandboxed=["other"] if second % 2 else [], deleting=["other"])
        node.wait(1)
        content = str(sorted(node.limits.items()))
        changes += content not in contents
        contents = {content}
    assert changes <= 2 * 900 / LIFT_EVERY_S + 2


numbers = st.integers(0, 5)
uses = st.builds(
    GpuUse,
    uuid=st.uuids().map(str),
    free_mib=numbers,
    free_cores=numbers,
    accepts_claims=st.booleans(),
    shares=numbers,
    rested=numbers,
)


@given(st.lists(uses, min_size=1, max_size=8, unique_by=lambda gpu: gpu.uuid), st.integers(1, 5), st.integers(0, 5))
def test_a_claim_that_fits_on_a_gpu_finds_a_gpu(gpus, most, unprepared):
    """The claim may have to take another one. No limit is above what the operator allows."""
    limits = sharer_limits(gpus, most, unprepared)
    assert all(1 <= limit <= most for limit in limits.values())
    assert limits.keys() == {gpu.uuid for gpu in gpus}
    takers = [gpu for gpu in gpus if gpu.accepts_claims and gpu.shares < most]
    for gpu in takers:
        alternatives = [other for other in takers if other.has_as_much_as(gpu)]
        # The scheduler counts also the claims that the agent does not see.
        assert any(
            limits[other.uuid] == most or limits[other.uuid] > other.shares + unprepared for other in alternatives
        )
