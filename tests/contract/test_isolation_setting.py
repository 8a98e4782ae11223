"""`--isolation` changes while containers run: they keep their driver, which kubelet's checkpoint names."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.isolation.interface import Need
from standin.kubelet.pods import Pod
from tests.contract.harness import MEM, Isolating, Node, box, pod, wait_for
from tests.contract.test_decisions import admit

MakeNode = Callable[..., Node]
BEST, OTHER = "best", "other"


class Named(Isolating):
    """One of two drivers, of which each promises everything.

    Attributes:
        has_held: it was told containers.
        has_served: it was told to serve the mode, if only for a moment.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.layer = replace(Isolating.layer, driver=name)
        self.has_held = False
        self.has_served = False

    def desire(self, need: Need) -> None:
        super().desire(need)
        self.has_held |= bool(need.held)
        self.has_served |= need.serves


def start(one: Node, setting: str) -> dict[str, Named]:
    """An agent with this setting, and its drivers."""
    drivers = {name: Named(name) for name in (BEST, OTHER)}
    one.run(*drivers.values(), isolation=setting)
    return drivers


def running(node: MakeNode, setting: str) -> tuple[Node, Pod]:
    """A node on which a pod runs since an agent with this setting, which has stopped."""
    one = node("1.36", box(1, 16), labels={MODE_LABEL: "cgpu"})
    drivers = start(one, setting)
    one.offers(mem=16)
    early = one.bind(pod("early", {MEM: 4}))
    assert admit(one, early) == [0]
    assert [bool(driver.prepared) for driver in drivers.values()] == [setting == BEST, setting == OTHER]
    one.stop(one.agents[0])
    return one, early


@pytest.mark.parametrize(("former", "setting"), [(BEST, OTHER), (OTHER, BEST), (BEST, "none"), (OTHER, "auto")])
def test_a_driver_serves_its_containers_to_their_end(node: MakeNode, former: str, setting: str) -> None:
    one, early = running(node, former)
    drivers = start(one, setting)
    one.offers(mem=16)
    wait_for(lambda: drivers[former].need.held, what="the driver is not told its containers")
    others = [driver for name, driver in drivers.items() if name != former]
    assert not any(driver.has_held or driver.has_served for driver in others)
    if setting != "auto":
        message = one.event("IsolationChangeWaiting")["message"]
        assert f"--isolation {setting} is not in force in mode cgpu" in message
        assert "default/early[c0]" in message
    late = one.bind(pod("late", {MEM: 4}))
    assert admit(one, late) == [0]
    assert drivers[former].prepared
    assert not any(driver.prepared for driver in others)
    one.end(early)
    one.end(late)
    if setting == "none":
        one.offers(mem=0)
    else:
        named = drivers[BEST if setting == "auto" else setting]
        wait_for(lambda: named.need.serves, what="the setting does not come into force")
