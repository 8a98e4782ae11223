"""The page of metrics whatever the state: shares of a former memory unit, random states, and a part that fails."""

import logging
import random
from typing import NoReturn

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import Samples
from gpuagent.metrics.meter import Metrics
from gpuagent.metrics.reading import Sources
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, gpu, holding, pod_json, unit_ids
from tests.unit.domain.dra.prepared_claims import claiming, prepared
from tests.unit.metrics.test_page import GIB, g, sample, values

LIMIT = "gpuagent_container_gpu_memory_limit_bytes"
FAILURES = "gpuagent_metrics_failures_total"
ISOLATED = [(Mode.CGPU, Kind.MEMORY_CGPU), (Mode.MPS, Kind.MEMORY_MPS), (Mode.CORE_MEM, Kind.MEMORY_CORE_MEM)]
MEMORY = [*ISOLATED, (Mode.SHARE, Kind.MEMORY_SHARE)]
MAIN = (*g(0), "ml", "p", "main")


def meter(state: State, *, compatible: bool = True) -> Metrics:
    metrics = Metrics()
    samples = Samples({one.uuid: one for one in (sample(0, (1, 3), used=8), sample(1))}, pids_seen=True)
    node_name = "n" if compatible else None
    metrics.show(Sources(state=lambda: state, samples=lambda _: samples, api=True, node_name=node_name))
    return metrics


def page(state: State) -> str:
    """The second page, which builds on the first, and shows its failures."""
    metrics = meter(state)
    metrics.page()
    text = metrics.page().decode()
    assert values(text, FAILURES) == {}
    return text


def of_a_former_unit(mode: Mode, kind: Kind, gpus: tuple[Gpu, ...], unit: str = "GiB") -> State:
    """A pod runs with the units 0 to 3 of GPU 0; then the agent starts again."""
    node = NodeUnderTest(mode, gpus, unit=MemoryUnit.parse(unit))
    node.pods(pod_json("p", {MEM: 4}, phase="Running"))
    return node.holdings(holding("p", unit_ids(0, kind, 0, 1, 2, 3))).state


@pytest.mark.parametrize(("mode", "kind"), MEMORY)
def test_a_unit_that_is_larger_than_the_gpu_of_a_running_pod(mode: Mode, kind: Kind) -> None:
    """How much the pod has is not known any more, but it is not more than the GPU."""
    text = page(of_a_former_unit(mode, kind, box(2, 16), "64GiB"))
    assert values(text, "gpuagent_problems")["MemoryUnitTooLarge", "blocking"] == 1
    assert values(text, LIMIT) == {MAIN: 16 * GIB}
    assert values(text, "gpuagent_gpu_memory_allocated_bytes") == {g(0): 16 * GIB, g(1): 0}


@pytest.mark.parametrize(("mode", "kind"), MEMORY)
def test_more_units_than_the_gpu_has_now(mode: Mode, kind: Kind) -> None:
    text = page(of_a_former_unit(mode, kind, box(2, 16), "8GiB"))
    assert values(text, LIMIT) == {MAIN: 16 * GIB}


@pytest.mark.parametrize(("mode", "kind"), MEMORY)
def test_a_running_pod_on_a_gpu_that_stops_reporting_its_memory(mode: Mode, kind: Kind) -> None:
    text = page(of_a_former_unit(mode, kind, (gpu(0, memory_mib=0), gpu(1))))
    assert values(text, LIMIT) == {MAIN: 4 * GIB}


@pytest.mark.parametrize("layer", ["none", "mps", "cgpu"])
@pytest.mark.parametrize(("gib", "unit"), [(16, "64GiB"), (16, "8GiB"), (0, "GiB")])
def test_a_prepared_claim_keeps_its_memory_when_the_unit_no_longer_fits(layer: str, gib: int, unit: str) -> None:
    """The record of a claim has its memory, whatever the unit is now."""
    gpus = (gpu(0, gib), gpu(1))
    node = NodeUnderTest(Mode.DRA, gpus, unit=MemoryUnit.parse(unit)).pods(claiming("p", "c"))
    node.send(ev.ClaimsPrepared((prepared("c", gpus[0], mib=4096, layer=layer),), 1.0))
    assert values(page(node.state), LIMIT) == {MAIN: 4 * GIB}


@pytest.mark.parametrize("seed", range(150))
def test_no_state_takes_the_page(seed: int) -> None:
    """Any mode and unit, GPUs with any memory, and pods and claims that hold what another unit or mode gave them."""
    chance = random.Random(seed)
    mode = chance.choice(list(Mode))
    node = NodeUnderTest(
        mode,
        random_gpus(chance),
        unit=MemoryUnit.parse(chance.choice(["MiB", "256MiB", "GiB", "3GiB", "8GiB", "64GiB", "9999999GiB"])),
    )
    names = [f"p{number}" for number in range(chance.randrange(4))]
    node.pods(*[pod_json(name, {MEM: 4}, phase="Running") for name in names], claiming("c", "one", "two"))
    node.holdings(*[random_holding(chance, name) for name in names])
    claims = tuple(random_claim(chance, name) for name in ("one", "two"))
    node.send(ev.ClaimsPrepared(claims, node.now))
    if chance.random() < 0.5:
        node.inventory(*random_gpus(chance))
    page(node.state)


def random_gpus(chance: random.Random) -> list[Gpu]:
    sizes = [0, 1, 255, 1024, 16 * 1024, 81_559]
    return [
        gpu(n, memory_mib=chance.choice(sizes), mig=chance.random() < 0.1) for n in range(3) if chance.random() < 0.8
    ]


def random_holding(chance: random.Random, pod: str) -> Holding:
    ids: set[str] = set()
    for _ in range(chance.randrange(1, 4)):
        numbers = chance.sample(range(200), chance.randrange(1, 9))
        ids |= unit_ids(chance.randrange(3), chance.choice(list(Kind)), *numbers)
    if chance.random() < 0.2:
        ids.add("GPU-of-another-plugin")
    return holding(pod, ids, chance.choice([MEM, CORE, WHOLE, "nvidia.com/gpu"]))


def random_claim(chance: random.Random, name: str) -> PreparedClaim:
    return prepared(
        name,
        gpu(chance.randrange(3)),
        mib=chance.choice([0, 1, 1024, 4096, 16 * 1024, 10**6]),
        cores=chance.choice([0, 5, 100]),
        layer=chance.choice(["none", "mps", "cgpu"]),
    )


def test_a_part_that_fails_leaves_the_others_and_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the part had before its failure stays, and so do the parts after it."""

    def fail(_: object) -> NoReturn:
        raise ZeroDivisionError

    state = of_a_former_unit(Mode.MPS, Kind.MEMORY_MPS, box())
    metrics = meter(state, compatible=False)
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr("gpuagent.metrics.reading.shares", fail)
        for count in (1, 2):
            text = metrics.page().decode()
            failed = {(part,): count for part in ("node", "gpus", "containers")}
            assert values(text, FAILURES) == failed, "on the page itself, and not only on the next one"
            assert values(text, "gpuagent_gpu_healthy") == {g(0): 1, g(1): 1}
            assert "gpuagent_node_ready" in text
            assert LIMIT not in text
    assert "Failed to compute a part of the metrics" in caplog.text
    text = metrics.page().decode()
    assert values(text, LIMIT) == {MAIN: 4 * GIB}
    assert values(text, FAILURES) == failed


def test_every_part_can_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state = of_a_former_unit(Mode.MPS, Kind.MEMORY_MPS, box())
    whole = meter(state).page().decode()

    def fail(_: object) -> NoReturn:
        raise KeyError("a bug")

    for part in ("node", "resources", "gpus", "containers", "arena"):
        with monkeypatch.context() as patched:
            patched.setattr(f"gpuagent.metrics.meter.{part}", fail)
            rest = meter(state).page().decode()
        assert values(rest, FAILURES) == {(part,): 1}
        assert len(rest) > len(whole) / 3
