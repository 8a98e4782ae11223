"""Conformance checks 60 to 66, 79 to 82, 88 and 89: the node's ResourceSlice. After kubelet's own test/e2e_node/dra_test.go."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.agent.agent import Agent
from gpuagent.domain.events import SliceProbed, XidRaised
from gpuagent.domain.node_state import claims
from gpuagent.domain.sharing.mode import GPU_MEM, Mode
from gpuagent.domain.status.problems import problems, switch
from gpuagent.kube.write import forgotten_claims
from gpuagent.simulation import boxes
from standin.api import objects
from standin.kubelet.dra.claim_infos import FILE_NAME
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import SET, SLICE, UNPREPARE, ClaimNode
from tests.contract.harness import box, observe, pod, terminate, wait_for

MakeNode = Callable[..., ClaimNode]


def uid(found: dict[str, Any] | None) -> str:
    return str(found["metadata"]["uid"]) if found else ""


def test_60_the_slice_is_back_after_a_start_of_kubelet(claim_node: MakeNode) -> None:
    """`must be removed on kubelet startup`: the agent makes a new one, and slices of other nodes stay."""
    one = claim_node()
    one.run()
    before = one.published()
    other = {**before, "metadata": {"name": "other"}, "spec": {**before["spec"], "nodeName": "node-2"}}
    one.server.objects.create("resourceslices", "", other)
    one.kubelet.restart()
    wait_for(lambda: uid(one.slice()) not in ("", uid(before)))
    assert one.published()["spec"] == before["spec"]
    assert one.server.objects.get(("resourceslices", "", "other"))


def test_61_the_slice_goes_after_the_agent_has_ended(claim_node: MakeNode) -> None:
    """`must be removed after plugin unregistration`."""
    one = claim_node()
    agent = one.run()
    one.registered()
    one.published()
    one.stop(agent)
    wait_for(lambda: one.slice() is None)


def test_62_the_slice_goes_after_the_agent_was_killed(claim_node: MakeNode) -> None:
    """`must be removed if plugin stops after registration`, `must be removed if plugin is unresponsive after
    registration`: the sockets are there, and nothing listens."""
    one = claim_node()
    process = one.spawn(*one.claim_flags(), wait=False)
    one.registered()
    one.published()
    terminate(process, signal.SIGKILL)
    wait_for(lambda: one.slice() is None)
    one.run()
    one.published()
    one.run_pod("pod", memory="8Gi")


def test_63_the_slice_stays_when_the_agent_is_back_soon(claim_node: MakeNode) -> None:
    """`must not be removed if plugin restarts quickly enough`."""
    one = claim_node(wipe=PATIENCE_S * 2)
    agent = one.run()
    one.registered()
    before = one.published()
    one.stop(agent)
    one.registered(0)
    one.run()
    one.registered()
    # So much time has passed for kubelet since the first one ended.
    one.kubelet.claims.periods.wipe = 0.0
    observe(1.0)
    assert uid(one.published()) == uid(before)


def test_64_one_agent_replaces_another_without_a_gap(claim_node: MakeNode) -> None:
    """Two instances serve side by side, and kubelet calls the newer one. No slice goes, and no call fails."""
    one = claim_node()
    old = one.run()
    first = one.registered()
    before = one.published()
    one.run_pod("before", memory="8Gi")
    one.run()
    both = one.registered(2)
    one.run_pod("meanwhile", memory="8Gi")
    one.stop(old)
    assert one.registered() == [path for path in both if path not in first]
    one.run_pod("after", memory="8Gi")
    for name in ("before", "meanwhile", "after"):
        one.delete(name)
        one.gone(name)
    assert one.files() == (0, 0)
    assert uid(one.slice()) == uid(before)
    assert not any(call.error for call in one.kubelet.claims.calls)


def test_65_a_burst_of_pods_fills_the_gpus_exactly(claim_node: MakeNode) -> None:
    """20 sharers a GPU: 40 pods fill two GPUs, one waits for an end, and nothing is left over."""
    one = claim_node()
    one.run()
    one.published()
    names = [f"pod-{n}" for n in range(41)]
    for name in names:
        one.create(name, memory="4Gi")
    wait_for(lambda: sum(one.phase(name) == "Running" for name in names) == 40)
    [waiting] = [name for name in names if one.phase(name) != "Running"]
    held = [one.running(name).env["NVIDIA_VISIBLE_DEVICES"] for name in names if name != waiting]
    assert sorted(held.count(uuid) for uuid in one.uuids) == [20, 20]
    names.remove(waiting)
    one.delete(names.pop())
    one.running(waiting)
    for name in [*names, waiting]:
        one.delete(name)
    wait_for(lambda: not one.server.pods())
    assert one.files() == (0, 0)
    assert not one.checkpoint()


def test_66_a_node_goes_over_to_claims_and_back_under_running_pods(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU has units and a claim at one time: a held one is a tainted device, and a claimed one has no units."""
    monkeypatch.setattr(claims, "WITHDRAWN_S", 1.0)
    one = claim_node(mode="share", gpus=box(2, 80))
    one.run()
    one.offers(mem=160)
    units = one.bind(pod("units", {GPU_MEM: 8}))
    assert one.kubelet.admit(units)
    one.label("dra")
    one.offers()
    wait_for(lambda: len(one.tainted()) == 1)
    claimed = one.run_pod("claim", memory="8Gi").env["NVIDIA_VISIBLE_DEVICES"]
    one.label("share")
    wait_for(lambda: one.slice() is None)
    one.offers(mem=80)
    assert {uuid for uuid in one.uuids if not one.on(uuid)} == {claimed}
    one.delete("claim")
    one.offers(mem=160)


def test_76_sets_of_linked_gpus_and_shares_exclude_each_other(claim_node: MakeNode) -> None:
    """On a DGX-1 with sets as devices. No set is allocated while a share has one of its GPUs."""
    one = claim_node(gpus=boxes.load("dgx1-v100"))
    one.run(gpu_sets=True)
    wait_for(lambda: len(one.server.objects.all("resourceslices")[0]) == 5)
    one.published()
    of_four = [{"cel": {"expression": 'device.attributes["gpu.gpuagent.io"].gpus == 4'}}]
    for name in ("four", "other-four"):
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": SET, "selectors": of_four}}]}}
        one.server.objects.create("resourceclaims", "default", {"metadata": {"name": name}, "spec": spec})
    one.create("training", claim="four")
    four = one.running("training").env["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(four) == 4
    assert one.run_pod("share", memory="4Gi").env["NVIDIA_VISIBLE_DEVICES"] not in four
    one.create("waits", claim="other-four")
    wait_for(lambda: any(c.get("reason") == "Unschedulable" for c in one.pod("waits")["status"].get("conditions", ())))
    one.delete("share")
    assert not {*four} & {*one.running("waits").env["NVIDIA_VISIBLE_DEVICES"].split(",")}


def test_79_no_slice_stays_of_an_agent_that_ended_amid_a_switch(claim_node: MakeNode) -> None:
    """Kubelet would delete it after 30 s. Until then the scheduler would place claims that no agent prepares."""
    one = claim_node(wipe=PATIENCE_S * 2)
    agent = one.run()
    one.published()
    one.server.deny("delete", "resourceslices")
    one.label("share")
    wait_for(lambda: agent.state.claims.write_problem)
    one.stop(agent)
    one.server.allow("delete", "resourceslices")
    one.run()
    wait_for(lambda: one.slice() is None)


def test_80_a_slice_of_another_node_in_the_way_is_reported(claim_node: MakeNode) -> None:
    """The agent does not see it, so its own can never be written. Once it is gone, the agent's comes."""
    one = claim_node(wipe=PATIENCE_S * 2)
    agent = one.run()
    before = one.published()
    one.stop(agent)
    of_another = {"metadata": {"name": SLICE}, "spec": {**before["spec"], "nodeName": "node-2"}}
    one.server.objects.delete(("resourceslices", "", SLICE))
    one.server.objects.create("resourceslices", "", of_another)
    agent = one.run()
    wait_for(lambda: "of another node or driver: delete it" in (agent.state.claims.write_problem or ""))
    one.server.objects.delete(("resourceslices", "", SLICE))
    assert one.published()["spec"]["nodeName"] == before["spec"]["nodeName"]


def test_81_no_gpu_is_given_otherwise_while_the_record_of_a_claim_cannot_be_read(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim may have any of them. Its end removes the record, also one that nobody can read."""
    monkeypatch.setattr(claims, "WITHDRAWN_S", 1.0)
    one = claim_node(gpus=box(2, 80))
    agent = one.run()
    one.published()
    one.run_pod("claim", memory="8Gi")
    one.stop(agent)
    (record,) = (one.root / "state" / "claims").iterdir()
    record.write_text(record.read_text()[:40])
    one.label("share")
    agent = one.run()
    wait_for(lambda: agent.state.node.mode is Mode.SHARE and one.slice() is None and not agent.state.claims.published)
    one.connected(agent)
    assert not one.ids(GPU_MEM)
    assert any(str(record) in str(holding) for holding in switch(agent.state).waiting_for)
    one.delete("claim")
    one.offers(mem=160)


def test_82_a_claim_that_kubelet_forgot_is_forgotten(claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet's state was removed, so it never unprepares the claim. It would keep a GPU from other modes for ever."""
    monkeypatch.setattr(forgotten_claims, "LOOK_S", 0.2)
    one = claim_node(reconcile=0.2)
    one.run()
    one.published()
    one.run_pod("forgotten", memory="8Gi")
    one.run_pod("stays", memory="8Gi")
    one.kubelet.stop()
    one.kubelet.claims.lose_containers()
    (one.root / "k" / FILE_NAME).unlink()
    one.delete("forgotten", grace_s=0)
    one.kubelet.start()
    wait_for(lambda: one.files() == (1, 1))
    one.running("stays")
    assert not one.calls(UNPREPARE)


def reasons(agent: Agent) -> dict[str, str]:
    """The agent's problems."""
    return {problem.reason: problem.message for problem in problems(agent.state)}


@pytest.mark.parametrize("gate", ["DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices"])
def test_88_an_api_server_that_drops_fields_gets_no_endless_writes(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    """The feature gate is off. The agent says which, and writes all again once it is on."""
    one = claim_node(gpus=boxes.load("dgx1-v100"))
    one.server.objects.gates_off = {gate}
    agent = one.run(gpu_sets=True)
    agent.post(XidRaised(one.uuids[0], 79, 0.0))
    wait_for(lambda: gate in reasons(agent).get("FeatureGateOff", ""), what=lambda: reasons(agent))
    wait_for(lambda: one.slice() is not None)
    assert not agent.state.claims.stored, "only fields are sent that are kept"
    wait_for(lambda: writes_in_two_seconds(one) == 0, what="the end of its writes")
    assert slice_requests(one) <= WRITES_AT_MOST
    assert gate in reasons(agent)["FeatureGateOff"]
    # Sets without counters are no devices: the scheduler would give their GPUs twice.
    names = [found["metadata"]["name"] for found in one.server.objects.all("resourceslices")[0]]
    assert any("-sets-" in name for name in names) is (gate != "DRAPartitionableDevices")
    one.server.objects.gates_off = set()
    monkeypatch.setattr(claims, "RETRY_S", 0.1)
    agent.post(SliceProbed({}, None, 0.0))  # sets the time of the next try
    wait_for(lambda: one.tainted(), what="its taint is kept by now")
    wait_for(lambda: is_shareable(one.slice()))
    wait_for(
        lambda: any("-sets-" in found["metadata"]["name"] for found in one.server.objects.all("resourceslices")[0])
    )


def is_shareable(found: dict[str, Any] | None) -> bool:
    devices = found["spec"]["devices"] if found else []
    return bool(devices) and all(device.get("allowMultipleAllocations") for device in devices)


WRITES_AT_MOST = 20
"""The dry run, and five slices: each is written, and at most three times more when its GPUs become known or ill."""


def writes_in_two_seconds(one: ClaimNode) -> int:
    before = slice_requests(one)
    observe(2.0)
    return slice_requests(one) - before


def slice_requests(one: ClaimNode) -> int:
    return sum(
        count
        for what, count in one.server.requests.items()
        if what in {f"{verb} resourceslices" for verb in ("patch", "create", "post")}
    )


def test_89_a_webhook_that_changes_a_slice_is_named(claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent does not fight with it."""

    def mutated(found: dict[str, Any], _gates_off: object) -> None:
        for device in found["spec"].get("devices") or ():
            device["attributes"]["example.com/rack"] = {"string": "r1"}

    monkeypatch.setattr(objects, "drop_fields", mutated)
    one = claim_node()
    agent = one.run()
    wait_for(lambda: "rack" in reasons(agent).get("ResourceSliceChanged", ""), what=lambda: reasons(agent))
    agent.kube.flush(PATIENCE_S)
    writes = slice_requests(one)
    observe(1.5)
    assert slice_requests(one) - writes <= 1
    one.run_pod("pod", memory="8Gi")
