"""An API server that stores a slice otherwise than it was sent is named, and gets no endless writes."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.claims import RETRY_S
from gpuagent.domain.reconcile.slice_writes import slice_writes
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from standin.api.slices import drop_fields
from tests.unit.domain.builders import DGX1V, box, in_force, uuid
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
    """Stores slices, each changed by `change`."""

    def __init__(self, change, *claims):
        self.change, self.slices, self.writes = change, {}, 0
        self.node = in_force(Mode.DRA, (), gpu_sets=True)
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
    assert problem.blocking is (gate != "DRAPartitionableDevices")
    server.node.label("share")
    assert "FeatureGateOff" not in server.reasons()


def test_each_gate_that_is_off_is_a_problem():
    server = Server(without(*GATES))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    texts = [problem.message for problem in problems(server.node.state) if problem.reason == "FeatureGateOff"]
    assert [next(gate for gate in GATES if f"{gate} is off" in text) for text in texts] == GATES


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


def test_a_field_that_stays_dropped_is_tried_once_in_a_while():
    server = Server(without("DRADeviceTaints"))
    server.node.send(ev.XidRaised(uuid(0), 79, server.node.now))
    server.settle(40)
    tries = []
    for _ in range(3):
        server.node.wait(RETRY_S)
        tries.append(server.settle())
    affected = len(server.node.state.claims.stored)
    assert tries == [affected] * 3


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
