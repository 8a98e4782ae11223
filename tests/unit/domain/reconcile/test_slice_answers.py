"""An API server that stores a slice otherwise than it was sent is named, and gets no endless writes."""

import copy
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.node_state.claims import RETRY_S
from gpuagent.domain.reconcile.slice_writes import slice_writes
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from standin.api.slices import drop_fields, gates_in_use
from tests.unit.domain.builders import DGX1V, NodeUnderTest, box, uuid
from tests.unit.domain.dra.prepared_claims import prepared

GATES = ["DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices"]
GPUS = box(8, 16)


def as_it_is(spec):
    pass


def with_a_default(spec):
    """A later version of the API has a field more."""
    for device in spec.get("devices", ()):
        device["later"] = {"default": True}


def rounded(spec):
    for device in spec.get("devices", ()):
        for capacity in device.get("capacity", {}).values():
            capacity["value"] = capacity["value"].replace("Gi", "000Mi")


def without(*gates):
    return lambda spec: drop_fields({"spec": spec}, gates)


SERVERS = {
    "as it is": as_it_is,
    "with a default": with_a_default,
    "rounded": rounded,
    **{gate: without(gate) for gate in GATES},
    "all off": without(*GATES),
}


class Server:
    """Stores slices, each changed by `change`. Fields of `turned_off` gates stay in slices that have some already."""

    def __init__(self, change, *claims):
        self.change, self.slices, self.writes = change, {}, 0
        self.turned_off = set()
        self.dry_runs = True
        self.node = NodeUnderTest(Mode.DRA, (), gpu_sets=True)
        self.node.inventory(*GPUS, wiring=DGX1V).holdings()
        self.node.send(ev.ClaimsPrepared(claims, self.node.now))
        self.show()

    def show(self):
        self.node.send(ev.SlicesSeen(copy.deepcopy(self.slices), self.node.now))

    def settle(self, most=20):
        """Write until nothing is left to write; how many writes that took."""
        before = self.writes
        while writes := slice_writes(self.node.state, "n"):
            assert self.writes - before < most, [write.name for write in writes]
            for write in writes:
                self.write(write)
            self.show()
        return self.writes - before

    def write(self, write):
        self.writes += 1
        if write.verb == "delete":
            del self.slices[write.name]
            return
        spec = copy.deepcopy(dict(write.body["spec"]))
        self.change(spec)
        drop_fields({"spec": spec}, self.turned_off - gates_in_use(self.slices.get(write.name)))
        if write.verb == "probe":
            self.node.send(ev.SliceProbed(write.body["spec"], spec if self.dry_runs else None, self.node.now))
            return
        meta = {"name": write.name, "uid": f"u-{write.name}", "resourceVersion": str(self.writes)}
        self.slices[write.name] = {"metadata": meta, "spec": spec}
        self.node.send(ev.SliceStored(write.name, write.body["spec"], spec, self.node.now))

    def reasons(self):
        return {problem.reason: problem for problem in problems(self.node.state)}


@pytest.mark.parametrize("change", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("claims", [(), (prepared("set", *GPUS[:2], mib=16384, device="gpus-2-kept"),)])
def test_writes_end_whatever_the_server_makes_of_them(change, claims):
    server = Server(change, *claims)
    server.settle(40)
    assert server.settle() == 0
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    assert server.settle() == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*SERVERS]), min_size=1, max_size=4), st.lists(st.integers(0, 7), max_size=4))
def test_writes_end_also_when_the_server_changes(names, xids):
    server = Server(as_it_is)
    server.settle(40)
    for name in names:
        server.change = SERVERS[name]
        for n in xids:
            server.node.send(ev.XidRaised(uuid(n), 79, server.node.now))
        server.settle(40)
        server.node.wait(RETRY_S)
        server.settle(40)
        assert server.settle() == 0


@pytest.mark.parametrize("gate", GATES)
def test_the_gate_that_is_off_is_named(gate):
    server = Server(without(gate))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    problem = server.reasons()["FeatureGateOff"]
    assert f"feature gate {gate} is off" in problem.message
    assert not problem.blocking, "whole GPUs are served"
    server.node.label("share")
    assert "FeatureGateOff" not in server.reasons()


def test_each_gate_that_is_off_is_a_problem():
    server = Server(without(*GATES))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    texts = [problem.message for problem in problems(server.node.state) if problem.reason == "FeatureGateOff"]
    assert [next(gate for gate in GATES if f"{gate} is off" in text) for text in texts] == GATES


def test_a_gate_is_found_to_be_off_before_claims_can_get_anything():
    """Not from the first slice: its GPUs would be there for all claims, until the answer to it came."""
    server = Server(without(*GATES))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    sent = []
    while writes := slice_writes(server.node.state, "n"):
        for write in writes:
            if write.verb == "create":
                sent.append(write.body["spec"])
            server.write(write)
        server.show()
    assert {field for field in FIELDS if field in str(sent)} == set()
    (spec,) = sent
    assert uuid(0) not in str(spec)
    assert not server.node.state.claims.stored, "it is stored as it was sent"


FIELDS = ("allowMultipleAllocations", "requestPolicy", "taints", "consumesCounters", "sharedCounters")


@pytest.mark.parametrize("gates", [combination for n in range(4) for combination in combinations(GATES, n)])
def test_only_fields_are_sent_that_the_server_keeps(gates):
    server = Server(without(*gates))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    sent = str(server.slices)
    assert ("allowMultipleAllocations" in sent) is ("sharers" in sent) is ("DRAConsumableCapacity" not in gates)
    assert ("taints" in sent) is (uuid(0) in sent) is ("DRADeviceTaints" not in gates)
    assert ("sharedCounters" in sent) is ("gpu-set" in sent) is ("DRAPartitionableDevices" not in gates)
    assert not server.node.state.claims.stored


def test_a_gpu_that_is_left_out_comes_back_with_the_same_name():
    server = Server(without(*GATES))
    server.settle(40)
    first = names(server)
    server.node.send(ev.FenceRead(Fence(indexes=frozenset({"3"})), server.node.now))
    server.settle(40)
    assert len(names(server)) == len(first) - 1
    server.node.send(ev.FenceRead(Fence(), server.node.now))
    server.settle(40)
    assert names(server) == first


def names(server):
    return {device["name"] for found in server.slices.values() for device in found["spec"].get("devices", ())}


@pytest.mark.parametrize("gates", [(), GATES])
def test_a_node_without_a_usable_gpu_has_an_empty_slice(gates):
    """The API server leaves an empty list out of its answers."""

    def stored(spec):
        without(*gates)(spec)
        if not spec.get("devices", True):
            del spec["devices"]

    server = Server(stored)
    server.settle(40)
    every = frozenset(map(str, range(8)))
    in_mig_mode = [replace(gpu, mig=True) for gpu in GPUS]
    server.node.send(ev.FenceRead(Fence(indexes=every), server.node.now)) if gates else server.node.inventory(
        *in_mig_mode
    )
    server.settle(40)
    assert server.settle() == 0
    assert names(server) == set()
    assert "ResourceSliceChanged" not in server.reasons()
    server.node.send(ev.FenceRead(Fence(), server.node.now)).inventory(*GPUS, wiring=DGX1V)
    server.settle(40)
    assert len(names(server) & {device_name(gpu) for gpu in GPUS}) == 8


def test_a_server_that_takes_no_dry_run_is_known_by_its_answers():
    server = Server(without(*GATES))
    server.dry_runs = False
    server.settle(40)
    assert server.settle() == 0
    assert server.node.state.claims.gates_off == {"DRAConsumableCapacity", "DRAPartitionableDevices"}
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    assert uuid(0) not in str(server.slices)


def test_without_a_dry_run_no_gpu_with_a_fault_comes_back_when_the_agent_asks_again():
    server = Server(without(*GATES))
    server.dry_runs = False
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    server.node.wait(RETRY_S)
    while writes := slice_writes(server.node.state, "n"):
        for write in writes:
            if write.verb != "probe":
                assert uuid(0) not in str(write.body), write.name
            server.write(write)
        server.show()


def test_the_taint_of_a_fault_does_not_wait_for_the_answer_when_the_agent_asks_again():
    server = Server(without("DRAConsumableCapacity"))
    server.settle(40)
    server.node.wait(RETRY_S)
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    unanswered = [write.verb for write in slice_writes(server.node.state, "n")]
    assert unanswered[0] == "probe"
    assert "patch" in unanswered


def test_a_field_that_the_server_keeps_again_is_written_after_a_while():
    server = Server(without("DRADeviceTaints"))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    server.change = as_it_is
    assert server.settle() == 0
    server.node.wait(RETRY_S - 1)
    assert server.settle() == 0
    assert "FeatureGateOff" in server.reasons()
    server.node.wait(1)
    assert "FeatureGateOff" in server.reasons(), "until the server has answered"
    assert server.settle() >= 1
    assert "FeatureGateOff" not in server.reasons()
    assert any(device.get("taints") for found in server.slices.values() for device in found["spec"].get("devices", ()))


@pytest.mark.parametrize("gates", [combination for n in range(1, 4) for combination in combinations(GATES, n)])
def test_a_gate_that_is_turned_off_later_is_found_in_time(gates):
    """Not by the writes: the API server keeps what a slice has already, and the scheduler ignores or refuses it."""
    server = Server(as_it_is)
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(60)
    server.turned_off = {*gates}
    server.node.send(ev.XidRaised(uuid(1), 79, server.node.now))
    server.settle(60)
    server.node.wait(RETRY_S)
    server.settle(60)
    assert server.node.state.claims.gates_off == server.turned_off
    in_use = set.union(*map(gates_in_use, server.slices.values()))
    assert in_use == {*GATES} - server.turned_off


def test_a_busy_node_asks_again_too():
    server = Server(without(*GATES))
    server.settle(40)
    server.change = as_it_is
    for _ in range(10):
        server.node.wait(RETRY_S / 10)
        # The order of the devices follows the claims, so each is followed by a write.
        server.node.send(ev.FenceRead(Fence(indexes=frozenset({"3"})), server.node.now))
        server.settle(40)
        server.node.send(ev.FenceRead(Fence(), server.node.now))
        assert server.settle(40) > 0
    assert "FeatureGateOff" not in server.reasons()


def test_a_server_that_takes_no_dry_run_is_asked_again():
    """A webhook may have refused it that is gone by now."""
    server = Server(as_it_is)
    server.dry_runs = False
    server.settle(40)
    server.turned_off = {*GATES}
    server.dry_runs = True
    server.node.wait(RETRY_S)
    server.settle(60)
    assert server.node.state.claims.gates_off == {*GATES}


@pytest.mark.parametrize("gates", [["DRAPartitionableDevices"], GATES])
def test_without_counters_the_gpus_of_a_set_that_a_claim_has_are_given_to_nobody_else(gates):
    """The scheduler takes no device that consumes counters then, and cannot see that a set has a GPU."""
    server = Server(as_it_is, prepared("set", *GPUS[:2], mib=16384, device="gpus-2-kept"))
    server.settle(60)
    server.turned_off = {*gates}
    server.node.wait(RETRY_S)
    server.settle(60)
    assert names(server) == {device_name(gpu) for gpu in GPUS[2:]}
    assert not set.union(*map(gates_in_use, server.slices.values())) & {*gates}
    server.node.send(ev.ClaimsPrepared((), server.node.now))
    server.settle(60)
    assert names(server) == {device_name(gpu) for gpu in GPUS}


def test_a_field_that_stays_dropped_is_tried_once_in_a_while():
    server = Server(without("DRADeviceTaints"))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    tries = []
    for _ in range(3):
        server.node.wait(RETRY_S)
        tries.append(server.settle())
    assert tries == [1] * 3, "a dry run"


def test_what_a_webhook_changes_is_named_without_a_gate():
    server = Server(rounded)
    server.settle(40)
    problem = server.reasons()["ResourceSliceChanged"]
    assert "spec.devices.capacity.memory.value" in problem.message
    assert not problem.blocking


def test_an_answer_as_sent_is_no_problem():
    server = Server(as_it_is)
    server.settle(40)
    assert not {"FeatureGateOff", "ResourceSliceChanged"} & {*server.reasons()}
