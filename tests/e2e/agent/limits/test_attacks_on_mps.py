"""The same attackers where MPS isolates, by what was measured of its caps: for comparison, see `standin.mps.memory`."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpuagent.simulation import boxes
from standin.mps.host import MpsHost
from standin.mps.memory import MpsMemory
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.attacks import (
    GPU,
    MIB,
    PROCESSES,
    attack,
    attacking_pod,
    enter,
    share,
    wait_ready,
    without_device,
)
from tests.e2e.agent.limits.helper import BOX, build_attacker
from tests.e2e.amounts import only_long

pytestmark = only_long
STOPPED, SUCCEEDS = "stopped", "succeeds"
A_SHARE_MORE = "has one share more"
CAP = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
RAISED = {CAP: "0=80G"}
WITHOUT_CAP = {CAP: ""}
VOIDED = {CAP: "9=1G"}
CLEARED = {"CUDA_MPS_PIPE_DIRECTORY": ""}


class MpsDriver:
    """The GPU behind MPS, and the folder that containers mount."""

    def __init__(self, folder: Path, *, exclusive: bool) -> None:
        self.attack = folder
        build_attacker(folder)
        size = boxes.load(BOX).gpus[0].memory_mib * MIB
        self.memory = MpsMemory(folder / "device.sock", GPU, size, exclusive=exclusive)


@pytest.fixture(params=[False, True], ids=["default", "exclusive"])
def driver(request: pytest.FixtureRequest) -> Iterator[MpsDriver]:
    """In each of the two compute modes that the agent leaves or sets."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        Path(folder).chmod(0o755)
        driver = MpsDriver(Path(folder), exclusive=bool(request.param))
        yield driver
        driver.memory.close()


@pytest.fixture
def node(make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with MpsHost() as host:
        monkeypatch.setenv("PATH", f"{host.control.parent}:/usr/bin:/bin:/usr/sbin:/sbin")
        host.write_smi({"modes": dict.fromkeys((gpu.uuid for gpu in boxes.load(BOX).gpus), "Default")})
        flags = ("--isolation", "mps", "--mps-control", str(host.control), "--mps-pipe-dir", str(host.own))
        node = make_node(BOX, "mps", flags)
        node.wait_amounts(mem=640)
        yield node


def test_what_succeeds_and_what_does_not(node: Node, driver: MpsDriver, request: pytest.FixtureRequest) -> None:
    """One after the other, because an agent with MPS takes seconds to start."""
    is_exclusive = "exclusive" in request.node.name
    results = {
        "static binary": outcome(node, driver, "plain"),
        "fork": outcome(node, driver, "fork"),
        "exec": outcome(node, driver, "exec"),
        "second process": outcome(node, driver, "processes", times=PROCESSES),
        "IPC": outcome(node, driver, "ipc"),
        "nested cgroup": outcome(node, driver, "nested-cgroup"),
        "raised pinned limit": outcome(node, driver, "plain", env=RAISED),
        "cleared pinned limit": outcome(node, driver, "plain", env=WITHOUT_CAP),
        "limit of a GPU that is not there": outcome(node, driver, "plain", env=VOIDED),
        "cleared pipe directory": outcome(node, driver, "plain", env=CLEARED),
        "managed memory": outcome(node, driver, "managed"),
        "kubectl exec": outcome_of_exec(node, driver, attack("plain")),
        "kubectl exec without the limit": outcome_of_exec(node, driver, [f"{CAP}=", *attack("plain")]),
        "sidecar without a device": outcome_of_sidecar(node, driver),
    }
    print(f"\nMPS, {'exclusive' if is_exclusive else 'default'}: {results}")
    without_mps = STOPPED if is_exclusive else SUCCEEDS
    assert results == {
        "static binary": STOPPED,
        "fork": SUCCEEDS,
        "exec": without_mps,
        "second process": SUCCEEDS,
        "IPC": SUCCEEDS,
        "nested cgroup": STOPPED,
        "raised pinned limit": STOPPED,
        "cleared pinned limit": STOPPED,
        "limit of a GPU that is not there": SUCCEEDS,
        "cleared pipe directory": without_mps,
        "managed memory": STOPPED,
        "kubectl exec": A_SHARE_MORE,
        "kubectl exec without the limit": A_SHARE_MORE,
        "sidecar without a device": without_mps,
    }


def outcome(node: Node, driver: MpsDriver, way: str, *, times: int = 1, env: dict[str, str] | None = None) -> str:
    node.run(attacking_pod("attacker", driver, attack(way), env=env))
    wait_ready(node, "attacker", times=times)
    return result(node, driver)


def outcome_of_exec(node: Node, driver: MpsDriver, command: Sequence[str]) -> str:
    """Beside the container's own program, which has the whole share."""
    node.run(attacking_pod("attacker", driver, attack("plain")))
    wait_ready(node, "attacker")
    enter(node, "attacker", command)
    is_within_two = driver.memory.used <= 2 * share()
    of_both = result(node, driver)
    return A_SHARE_MORE if of_both == SUCCEEDS and is_within_two else of_both


def outcome_of_sidecar(node: Node, driver: MpsDriver) -> str:
    """If it reaches the driver: the kernel keeps it from the device nodes."""
    sidecar = without_device("sidecar", attack("plain"))
    node.run(attacking_pod("attacker", driver, attack("plain"), others=[sidecar]))
    for container in ("main", "sidecar"):
        wait_ready(node, "attacker", container)
    return result(node, driver)


def result(node: Node, driver: MpsDriver) -> str:
    got = driver.memory.used
    node.end("attacker")
    return SUCCEEDS if got > share() else STOPPED
