"""Taints of the devices, and what kubelet shows of their health."""

import re

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_health import DeviceHealth, device_healths
from gpuagent.domain.dra.resource_slice import device_name, slice_spec
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.gpus.health_verdict import GpuHealth, HealthReading
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from tests.unit.domain.builders import box, gpu, holding, in_force, unit_ids, uuid
from tests.unit.domain.dra.prepared_claims import prepared

SETTLE_S = 60.0


@pytest.fixture
def node():
    return in_force(Mode.DRA)


def taints(node, n=0):
    """Effect and value by the taint's short key."""
    (device,) = (one for one in slice_spec(node.state, "n")["devices"] if one["name"] == device_name(gpu(n)))
    return {
        taint["key"].removeprefix("gpu.gpuagent.io/"): (taint["effect"], taint.get("value", ""))
        for taint in device.get("taints", [])
    }


def health(node, n=0):
    (found,) = (one for one in device_healths(node.state) if one.device == device_name(gpu(n)))
    return found.healthy, found.message


def xid(node, code, reading=None):
    return node.send(ev.XidRaised(uuid(0), code, node.now, reading))


def reads(node, reading, *, returned=False):
    return node.send(ev.HealthRead(uuid(0), reading, node.now, returned))


NO_EXECUTE = {"evict_claims": True}


@pytest.mark.parametrize(("policy", "effect"), [({}, "NoSchedule"), (NO_EXECUTE, "NoExecute")])
def test_an_xid_taints_the_gpu_until_it_was_reset_and_has_settled(policy, effect):
    node = xid(in_force(Mode.DRA, **policy), 79)
    assert taints(node) == {"unhealthy": (effect, "xid-79")}
    assert health(node) == (False, f"GPU 0 ({uuid(0)}) is unhealthy: XID 79")
    reads(node, HealthReading(), returned=True)
    assert taints(node) == {"settling": ("NoSchedule", "xid-79")}
    healthy, message = health(node)
    assert healthy
    assert message.endswith("settling; it was unhealthy: XID 79")
    node.wait(SETTLE_S)
    assert taints(node) == {}
    assert health(node) == (True, "")
    assert taints(node, 1) == {}


def test_the_taint_names_the_cause(node):
    node.send(ev.GpuLost(uuid(0), "fell off the bus", node.now))
    assert taints(node)["unhealthy"] == ("NoSchedule", "lost")
    reads(node, HealthReading(action=2))
    assert taints(node)["unhealthy"] == ("NoSchedule", "recovery-action-2")
    reads(node, HealthReading(action=0, remap_failed=True))
    assert taints(node)["unhealthy"] == ("NoSchedule", "row-remap-failed")
    xid(node, 48)
    assert taints(node)["unhealthy"] == ("NoSchedule", "xid-48")
    node.inventory(gpu(1))
    assert taints(node)["unhealthy"] == ("NoSchedule", "xid-48")


def test_a_gpu_that_the_driver_does_not_list_is_tainted(node):
    node.inventory(gpu(1))
    assert taints(node) == {"unhealthy": ("NoSchedule", "unlisted")}
    assert health(node) == (False, f"GPU 0 ({uuid(0)}) is unhealthy: the driver does not list it any more")


def test_an_applications_fault_taints_nothing(node):
    assert taints(xid(node, 31)) == {}


@pytest.mark.parametrize("policy", [{}, NO_EXECUTE])
def test_a_fenced_gpu_keeps_its_pods(policy):
    node = in_force(Mode.DRA, **policy)
    node.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), node.now))
    assert taints(node) == {"fenced": ("NoSchedule", "")}
    assert health(node) == (False, f"GPU 0 ({uuid(0)}) is fenced by file (index 0)")
    xid(node, 79)
    assert [*taints(node)] == ["unhealthy", "fenced"]
    node.send(ev.FenceRead(Fence(), node.now))
    assert [*taints(node)] == ["unhealthy"]


@pytest.mark.parametrize("policy", [{}, NO_EXECUTE])
def test_what_does_not_answer_is_unknown_and_evicts_no_pod(policy):
    node = in_force(Mode.DRA, **policy)
    node.inventory(gpu(1), unreadable=(UnreadableGpu(0, "it hangs"),))
    assert taints(node) == {"unreadable": ("NoSchedule", "")}
    assert health(node) == (None, f"GPU 0 ({uuid(0)}): it cannot be read: it hangs")
    node.inventory(*box()).wait(SETTLE_S)
    assert taints(node) == {}
    node.send(ev.DriverUnavailable("it does not answer", node.now))
    assert [taints(node, n) for n in range(2)] == [{"unreadable": ("NoSchedule", "")}] * 2
    assert health(node) == (None, f"GPU 0 ({uuid(0)}): NVIDIA driver: it does not answer")
    node.inventory(*box())
    assert taints(node) == {}


def test_a_gpu_of_another_mode_is_tainted_and_healthy():
    node = in_force(Mode.SHARE)
    held = holding("p", unit_ids(0, Kind.MEMORY_SHARE, 0), GPU_MEM)
    node.holdings(held).label("dra").wait(3)
    node.holdings(held)
    assert taints(node) == {"held": ("NoSchedule", "")}
    assert health(node) == (True, "")


def test_notes_are_messages(node):
    reads(node, HealthReading(action=0, hot=True))
    assert health(node) == (True, f"GPU 0 ({uuid(0)}): slowed down by its temperature; check fans and air flow")


def test_a_gpu_in_mig_mode_is_shown_where_a_claim_has_it(node):
    node.inventory(gpu(0, mig=True), gpu(1))
    assert health(node) == (False, f"GPU 0 ({uuid(0)}) is in MIG mode, which claims cannot use")


def test_a_claims_gpu_that_is_not_there_since_the_agent_started_is_unhealthy(node):
    node.send(ev.ClaimsPrepared((prepared("c", gpu(5)),), node.now))
    assert health(node, 5) == (False, f"GPU {uuid(5)} is not on the node any more")


def test_kubelet_gets_the_health_of_claims_of_a_former_mode_and_nothing_without_claims():
    node = in_force(Mode.SHARE)
    assert device_healths(node.state) == ()
    node.send(ev.ClaimsPrepared((prepared("c", gpu(0)),), node.now))
    assert DeviceHealth(device_name(gpu(0)), True) in device_healths(node.state)


def test_the_value_of_a_taint_is_the_value_of_a_label():
    case = GpuHealth()
    for code in (48, 63, 79, 119):
        case = case.xid(code, None, frozenset(), 0.0).judged(0.0, 1.0, known=True)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", case.fault)
    assert case.fault == "xid-48-63-79-119"
