"""A running pod is resized: by annotation, through the agent's own path, on a stand-in kubelet and API server."""

import time
from collections.abc import Callable
from dataclasses import replace

from gpuagent.agent.agent import Agent
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.isolation.interface import Need
from inspectcgpu.read.agent_page import read_page
from standin.kubelet.pods import Pod
from tests.contract.harness import MEM, Isolating, Node, box, fetch, ids_on, pod, wait_for
from tests.contract.test_decisions import admit

MakeNode = Callable[..., Node]
GIB = 2**30


class Limiting(Isolating):
    """A driver that limits pods from outside.

    Attributes:
        in_force: UID of a pod to the shares whose limits are in force.
        uses: UID of a pod to the bytes that it uses.
    """

    layer = replace(Isolating.layer, limits_pods=True)

    def __init__(self) -> None:
        super().__init__()
        self.in_force: dict[str, PodShares] = {}
        self.uses: dict[str, int] = {}
        self.reported = self.layer

    def desire(self, need: Need) -> None:
        super().desire(need)
        refused = {}
        for uid, shares in need.pods.items():
            used = self.uses.get(uid, 0)
            if used > min(shares.total.values(), default=used):
                refused[uid] = f"it uses {used / GIB} GiB"
            else:
                self.in_force[uid] = shares
        applied = {uid: self.in_force[uid] for uid in need.resized if uid in self.in_force}
        layer = replace(self.layer, applied=applied, refused=refused)
        if layer != self.reported:
            self.reported = layer
            self.report(layer)

    def gib(self, asked: Pod) -> float:
        """The limit of a pod."""
        shares = self.in_force.get(asked.uid, PodShares())
        return sum(shares.total.values()) / GIB


def sharing(node: MakeNode) -> tuple[Node, Limiting, Agent, Pod]:
    """A GPU of 16 GiB with a pod of 8."""
    one = node("1.36", box(1, 16), labels={MODE_LABEL: "cgpu"})
    driver = Limiting()
    agent = one.run(driver, live_resize=True, http_address=("127.0.0.1", 0))
    one.offers(mem=16)
    train = one.bind(pod("train", {MEM: 8}))
    assert admit(one, train) == [0]
    one.server.patch_pod("train", {"status": {"phase": "Running"}}, subresource="status")
    wait_for(lambda: driver.gib(train) == 8)
    return one, driver, agent, train


def annotate(one: Node, text: str | None) -> None:
    one.server.patch_pod("train", {"metadata": {"annotations": {LIMIT_ANNOTATION: text}}})


def status(one: Node) -> str:
    (found,) = (made for made in one.server.pods() if made["metadata"]["name"] == "train")
    return str(found["metadata"]["annotations"].get(LIMIT_STATUS_ANNOTATION))


def test_a_limit_rises_within_a_second_and_nobody_else_gets_the_memory(node: MakeNode) -> None:
    one, driver, agent, train = sharing(node)
    began = time.monotonic()
    annotate(one, "c0=12")
    wait_for(lambda: driver.gib(train) == 12)
    took_s = time.monotonic() - began
    print(f"in force after {took_s:.2f} s")
    one.offers(mem=12)
    wait_for(lambda: status(one) == "InForce: c0=12")
    assert "c0=12" in one.event("GPUMemoryResized")["message"]
    page = read_page(fetch(agent.http_port, "/status")[1])
    assert page is not None
    assert page.resizes == {PodName("default", "train"): "InForce: c0=12"}, "as kubectl inspect cgpu shows it"
    refused = one.kubelet.admit(one.bind(pod("large", {MEM: 5})))
    assert not refused
    assert admit(one, one.bind(pod("small", {MEM: 4}))) == [0]
    wait_for(lambda: len(one.ids(MEM)) == 12, what="the units have not left the list")


def test_a_restarted_agent_begins_without_the_units_although_the_api_server_is_silent(node: MakeNode) -> None:
    one, driver, agent, train = sharing(node)
    annotate(one, "c0=12")
    wait_for(lambda: driver.gib(train) == 12)
    one.stop(agent)
    lists = len(one.kubelet.lists(MEM))
    one.server.hold_lists("pods", namespaced=True)
    again = Limiting()
    one.run(again, live_resize=True)
    one.offers(mem=12)
    assert all(len(ids_on(one.uuids[0], made.health)) <= 12 for made in one.kubelet.lists(MEM)[lists:])
    wait_for(lambda: again.gib(train) == 12)
    one.server.resume()
    one.end(train)
    one.offers(mem=16)


def test_a_limit_below_the_use_is_refused_and_takes_nothing_from_the_pod(node: MakeNode) -> None:
    one, driver, _, train = sharing(node)
    driver.uses[train.uid] = 6 * GIB
    annotate(one, "c0=4")
    wait_for(lambda: status(one) == "Refused: it uses 6.0 GiB; in force: c0=8")
    assert driver.gib(train) == 8
    assert "it uses 6.0 GiB" in one.event("GPUResizeRefused")["message"]
    one.offers(mem=16)


def test_without_the_setting_the_annotation_does_nothing(node: MakeNode) -> None:
    one, driver, agent, train = sharing(node)
    one.stop(agent)
    one.run(driver)
    one.offers(mem=16)
    annotate(one, "c0=12")
    assert "--live-resize" in one.event("GPUResizeRefused")["message"]
    assert driver.gib(train) == 8
    one.offers(mem=16)
