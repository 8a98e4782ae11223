"""What a mode promises, held before a container starts, with an API server and without one."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from standin.kubelet.pods import Container, Pod, StartError
from tests.contract.harness import CORE, MEM, NODE, Isolating, Node, box, pod, wait_for

MakeNode = Callable[..., Node]


def spelled(name: str, **limits: str) -> dict[str, Any]:
    """A bound pod whose amounts the API server keeps in this spelling."""
    amounts = {{"mem": MEM, "core": CORE}[key]: text for key, text in limits.items()}
    containers = [{"name": "c0", "image": "work", "resources": {"limits": amounts}}]
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": NODE, "containers": containers},
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize("spelling", ["5", "5e0", "5000m", "+5", "5.", "18446744073709551621", "not an amount"])
def test_no_spelling_of_an_amount_gets_around_a_rule(node: MakeNode, spelling: str) -> None:
    """core_mem: compute alone never runs; both run, in the same spellings; the annotations say what the pod holds."""
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "core_mem"})
    agent = one.run(Isolating())
    one.offers(mem=24, core=100)

    def bound(name: str, kubelets: dict[str, int], **limits: str) -> Pod:
        made = one.server.objects.create("pods", "default", spelled(name, **limits))
        wait_for(lambda: any(p.name.name == name for p in agent.state.pods.seen))
        return Pod(name, uid=made["metadata"]["uid"], containers=(Container("c0", kubelets),))

    half = bound("half", {CORE: 5}, core=spelling)
    admitted = one.kubelet.admit(half)
    if admitted:  # what cannot be read at all is known by kubelet's record
        with pytest.raises(StartError, match="has both, or neither"):
            one.kubelet.start_container(half, "c0")
    else:
        assert "asks for both, or for neither" in admitted.failed
    one.end(half)
    both = bound("both", {MEM: 5, CORE: 5}, mem=spelling, core=spelling)
    assert one.kubelet.admit(both)
    one.kubelet.start_container(both, "c0")
    key = "scheduler.framework.gpushare.allocation"

    def annotated() -> bool:
        found = next(p for p in one.server.pods() if p["metadata"]["name"] == "both")
        return bool(found["metadata"].get("annotations", {}).get(key) == '{"0":{"0":5}}')

    wait_for(annotated, what="the agent has not annotated the pod")


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_container_with_one_half_of_core_mem_never_starts_while_the_api_server_is_away(
    node: MakeNode, restarted: bool
) -> None:
    """Ordinary and init containers; kubelet keeps trying, and the pod lives. Containers with both start."""
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "core_mem"})
    isolation = Isolating()
    agent = one.run(isolation)
    one.offers(mem=24, core=100)
    one.server.stop()
    if restarted:
        one.stop(agent)
        one.run(isolation)
        one.offers(mem=24, core=100)
    both = {MEM: 2, CORE: 10}
    for n, wrong in enumerate(({CORE: 10}, {MEM: 2})):
        alone = pod(f"alone-{n}", wrong)
        first = pod(f"first-{n}", both, init=(Container("init", wrong),))
        for refused, container in ((alone, "c0"), (first, "init")):
            assert one.kubelet.admit(refused)
            for _ in range(2):
                with pytest.raises(StartError, match="has both, or neither. Delete the pod, and ask for both"):
                    one.kubelet.start_container(refused, container)
            one.kubelet.remove(refused)
    assert isolation.verified == []
    right = pod("right", both, init=(Container("init", both),))
    assert one.kubelet.admit(right)
    for container in ("init", "c0"):
        one.kubelet.start_container(right, container)
