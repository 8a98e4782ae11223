"""Conformance checks 72 to 75: the health of devices in the status of pods. After kubelet's own list."""

from collections.abc import Callable

import pytest

from tests.contract.claim_node import WHOLE, ClaimNode
from tests.contract.harness import wait_for

MakeNode = Callable[..., ClaimNode]


def shown(one: ClaimNode, name: str = "pod") -> list[tuple[str, str]]:
    """Health and message of each device of a pod."""
    [container] = one.pod(name)["status"]["containerStatuses"]
    found = container.get("allocatedResourcesStatus") or []
    return [(entry["health"], entry.get("message", "")) for status in found for entry in status["resources"]]


def shows(one: ClaimNode, *healths: str, name: str = "pod") -> None:
    wait_for(lambda: [health for health, _ in shown(one, name)] == [*healths], what=lambda: shown(one, name))


def number(one: ClaimNode, name: str) -> int:
    """Number of the GPU that a pod has."""
    return one.uuids.index(one.running(name).env["NVIDIA_VISIBLE_DEVICES"])


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_72_the_status_of_a_pod_shows_the_health_of_its_devices(claim_node: MakeNode, version: str) -> None:
    """`should reflect device health changes in the Pod's status` and `... for devices with ShareID`."""
    one = claim_node(version)
    one.run(settle=0.2)
    one.published()
    one.run_pod("pod", memory="8Gi")
    shows(one, "Healthy")
    one.simulator.xid(number(one, "pod"), 95)
    shows(one, "Unhealthy")
    assert "95" in shown(one)[0][1]
    wait_for(lambda: len(one.tainted()) == 1)
    one.simulator.action(number(one, "pod"), 0)
    shows(one, "Healthy")
    one.published()


def test_73_each_device_of_a_claim_is_shown(claim_node: MakeNode) -> None:
    """Kubelet shows one entry for each first CDI name: two GPUs of a claim have two."""
    one = claim_node()
    one.run()
    one.published()
    one.run_pod("pod", WHOLE, count=2)
    shows(one, "Healthy", "Healthy")
    one.simulator.xid(1, 79)
    wait_for(lambda: sorted(health for health, _ in shown(one)) == ["Healthy", "Unhealthy"])


def test_74_health_is_unknown_while_the_agent_is_away(claim_node: MakeNode) -> None:
    """`should update health to Unknown when plugin stops and recover upon restart`, at kubelet's next sync."""
    one = claim_node(resync=0.2, health=0.1)
    agent = one.run()
    one.published()
    one.run_pod("pod", memory="8Gi")
    shows(one, "Healthy")
    one.stop(agent)
    shows(one, "Unknown")
    one.run()
    shows(one, "Healthy")


def test_75_claims_and_health_work_after_a_connection_was_lost(claim_node: MakeNode) -> None:
    """`should automatically reconnect both DRA and Health API after connection drop`, `should handle concurrent DRA
    operations and health monitoring without connection issues`."""
    one = claim_node(health=0.1)
    one.run(settle=0.2)
    one.published()
    one.run_pod("before", memory="8Gi")
    one.kubelet.restart()
    one.registered()
    names = [f"pod-{n}" for n in range(3)]
    for name in names:
        one.create(name, memory="8Gi")
    for name in names:
        one.running(name)
    one.simulator.xid(number(one, "before"), 79)
    for name in ("before", *names):  # binpack: all on one GPU
        shows(one, "Unhealthy", name=name)
