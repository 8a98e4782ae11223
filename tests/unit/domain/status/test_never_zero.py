"""Never zero without a word: where a GPU gives less than it could, a problem says why, whatever happened before."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import slice_specs
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Gpu, UnreadableGpu
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import DISABLE_LABEL, DRA_DRIVER, Isolates, Kind, Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import Problem, problems
from gpuagent.domain.usable_gpus import serves_gpus, usable_gpus
from tests.unit.domain.builders import NodeUnderTest, gpu, holding, node_json, unit_ids, uuid
from tests.unit.domain.dra.prepared_claims import prepared

MOST_GPUS = 4
SIZES_MIB = (0, 1, 512, 1023, 16 * 1024, 24258, 80 * 1024)
UNITS_MIB = (1, 64, 256, 1024, 2048, 16 * 1024, 64 * 1024, 100 * 1024)

SAYS_NOTHING_OF_AMOUNTS = {
    "APIServerUnavailable",
    "AnnotationsNotWritten",
    "DeviceCountHigh",
    "FenceUnknown",
    "FenceUnreadable",
    "GPUDegraded",
    "GPULinkDegraded",
    "InvalidModeLabel",
    "InvalidPlacementLabel",
    "MixedGPUs",
    "ModeNotSaved",
    "NonContiguousGPUMinors",
    "PodsUnavailable",
    "PreferredAllocationUnsupported",
    "ReportNotWritten",
    "StartupTaint",
    "UnitsChanged",
    "UntrustedDaemon",
}
"""Problems that take no unit away. Each other reason may be why an amount is low, if its message names what is low."""


@dataclass(frozen=True)
class Shortfall:
    """A GPU that gives less of a resource than its mode promises."""

    gpu: Gpu
    resource: str


def shortfalls(state: State) -> Iterator[Shortfall]:
    """Of every GPU that the agent has read, in the mode in force."""
    for resource, kind in state.resource_kinds.items():
        offered = {block.gpu.uuid: block for block in state.advertised.lists[resource] if block.kind is kind}
        for each in state.gpus.by_index:
            block = offered.get(each.uuid)
            healthy = block.count if block and block.healthy else 0
            if healthy < max(1, units_of(each, kind, state.policy.unit)):
                yield Shortfall(each, resource)
    if state.node.mode is Mode.DRA:
        yield from _claims_shortfalls(state)


def _claims_shortfalls(state: State) -> Iterator[Shortfall]:
    """GPUs that no further claim can get, in the slices that the agent wants."""
    devices = [device for spec in slice_specs(state, "n").values() for device in spec.get("devices", ())]
    of_gpus = [device for device in devices if "uuid" in device["attributes"]]
    free = {device["attributes"]["uuid"]["string"] for device in of_gpus if not device.get("taints")}
    for each in state.gpus.by_index:
        if each.uuid not in free:
            yield Shortfall(each, DRA_DRIVER)


def explains(problem: Problem, shortfall: Shortfall, state: State) -> bool:
    """A problem explains a shortfall if it names the GPU, its resource, its mode, or what the whole node lacks."""
    if problem.reason in SAYS_NOTHING_OF_AMOUNTS:
        return False
    names = (shortfall.gpu.uuid, f"GPU {shortfall.gpu.index} ", shortfall.resource, f"mode {state.node.mode}")
    about_all = problem.message.startswith(("all ", "none of the "))
    whole_node = about_all or problem.reason == "DriverUnavailable" or "no GPUs are advertised" in problem.message
    return whole_node or any(name in problem.message for name in names)


def unexplained(state: State) -> list[Shortfall]:
    found = problems(state)
    return [s for s in shortfalls(state) if not any(explains(problem, s, state) for problem in found)]


# -- histories -----------------------------------------------------------------------------------------------

Action = Callable[[NodeUnderTest, st.DataObject], Any]


def some_gpus(data: st.DataObject) -> set[int]:
    return data.draw(st.sets(st.integers(0, MOST_GPUS - 1)), "GPUs")


def a_reason(data: st.DataObject) -> str | None:
    return data.draw(st.sampled_from([None, "it is broken"]), "reason")


def inventory(node: NodeUnderTest, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from(SIZES_MIB), min_size=MOST_GPUS, max_size=MOST_GPUS), "sizes")
    listed = some_gpus(data)
    unreadable = some_gpus(data) - listed if data.draw(st.booleans(), "some unreadable") else set()
    mig = some_gpus(data) if data.draw(st.booleans(), "MIG") else set()
    read = [gpu(n, memory_mib=sizes[n], mig=n in mig) for n in sorted(listed)]
    node.inventory(*read, unreadable=tuple(UnreadableGpu(n, "it is broken") for n in sorted(unreadable)))


def driver(node: NodeUnderTest, _data: st.DataObject) -> None:
    node.send(ev.DriverUnavailable("it is broken", node.now))


def label(node: NodeUnderTest, data: st.DataObject) -> None:
    seen = node_json(data.draw(st.sampled_from([None, "bogus", *map(str, Mode)]), "label"))
    if data.draw(st.integers(0, 4), "another plugin") == 0:
        seen["status"] = {"allocatable": {"nvidia.com/gpu": "2"}}
    if data.draw(st.integers(0, 4), "isolation off") == 0:
        seen["metadata"]["labels"][DISABLE_LABEL] = "true"
    node.send(ev.NodeSeen(seen, node.now))


def time_passes(node: NodeUnderTest, data: st.DataObject) -> None:
    node.wait(data.draw(st.sampled_from([0.1, 1.0, 3.0, 20.0, 100.0, 4000.0]), "seconds"))


def health(node: NodeUnderTest, data: st.DataObject) -> None:
    of = uuid(data.draw(st.integers(0, MOST_GPUS - 1), "GPU"))
    reading = HealthReading(action=data.draw(st.sampled_from([None, 0, 1, 9]), "action"))
    xid = data.draw(st.sampled_from([31, 79, 94]), "XID")
    events = [
        ev.XidRaised(of, xid, node.now),
        ev.XidRaised(of, xid, node.now, reading),
        ev.GpuLost(of, "it is broken", node.now),
        ev.HealthRead(of, reading, node.now),
        ev.HealthRead(of, reading, node.now, returned=True),
    ]
    node.send(data.draw(st.sampled_from(events), "event"))


def fence(node: NodeUnderTest, data: st.DataObject) -> None:
    named = some_gpus(data)
    read = ev.FenceRead(Fence(indexes=frozenset(map(str, named))), node.now)
    node.send(data.draw(st.sampled_from([read, ev.FenceUnreadable("it is broken", node.now)]), "event"))


def allocations(node: NodeUnderTest, data: st.DataObject) -> None:
    if data.draw(st.integers(0, 3), "kubelet is silent") == 0:
        node.send(ev.HoldingsUnavailable("it is broken", node.now))
        return
    held = []
    for n in sorted(some_gpus(data)):
        kind = data.draw(st.sampled_from(list(Kind)), "kind")
        held.append(holding(f"pod-{n}", unit_ids(n, kind, 0), Resources("nvidia.com/gpu").of(kind)))
    if data.draw(st.booleans(), "another plugin's pod"):
        held.append(holding("other", [uuid(0)], "nvidia.com/gpu"))
    node.holdings(*held)


def calls(node: NodeUnderTest, _data: st.DataObject) -> None:
    if node.state.allocates.in_flight:
        node.allocate_ends()
    else:
        node.allocate_begins()


def registration(node: NodeUnderTest, data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from(node.state.policy.resources.names), "resource")
    problem = a_reason(data)
    node.send(ev.RegistrationChanged(resource, problem, node.now, connected=problem is None))


def layer(node: NodeUnderTest, data: st.DataObject) -> None:
    problem = a_reason(data)
    report = Layer(
        driver=data.draw(st.sampled_from(["cgpu", "mps"]), "driver"),
        installed=data.draw(st.booleans(), "installed"),
        isolates=frozenset(data.draw(st.sets(st.sampled_from(list(Isolates))), "isolates")),
        modes=frozenset(data.draw(st.sets(st.sampled_from(list(Mode))), "modes")),
        problem=problem,
        standby=problem is not None and data.draw(st.booleans(), "standby"),
        unserved={Mode.MPS: "it is broken"} if data.draw(st.booleans(), "unserved") else {},
        left_out={uuid(n): "it is broken" for n in some_gpus(data)},
    )
    node.send(ev.LayerSeen(report, node.now))


def api_server(node: NodeUnderTest, data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(["node", "pods", "slices"]), "what")
    node.send(ev.ApiUnavailable("it is broken", node.now, what))


def claims(node: NodeUnderTest, data: st.DataObject) -> None:
    known = [node.state.gpus.by_uuid[uuid(n)] for n in some_gpus(data) if uuid(n) in node.state.gpus.by_uuid]
    unreadable = data.draw(st.integers(0, 4), "unreadable") == 0
    made = [prepared("a", *known)] if known or unreadable else []
    node.send(ev.ClaimsPrepared(tuple(made), node.now))


def slices(node: NodeUnderTest, data: st.DataObject) -> None:
    """The API server gets what the agent wants, or refuses it."""
    problem = a_reason(data)
    node.send(ev.SliceWritten(problem, node.now))
    if problem is None:
        specs = slice_specs(node.state, "n")
        node.send(ev.SlicesSeen({name: {"spec": spec} for name, spec in specs.items()}, node.now))


def dra_driver(node: NodeUnderTest, data: st.DataObject) -> None:
    events = [ev.DraRegistered(a_reason(data), node.now), ev.DraStopped(node.now)]
    node.send(data.draw(st.sampled_from(events), "event"))


ACTIONS: list[Action] = [
    inventory,
    driver,
    label,
    time_passes,
    health,
    fence,
    allocations,
    calls,
    registration,
    layer,
    api_server,
    claims,
    slices,
    dra_driver,
]


def a_node(data: st.DataObject) -> NodeUnderTest:
    node = NodeUnderTest(
        data.draw(st.sampled_from(list(Mode)), "mode"),
        unit=MemoryUnit(data.draw(st.sampled_from(UNITS_MIB), "unit")),
        resources=Resources(data.draw(st.sampled_from([None, "nvidia.com/gpu"]), "exclusive")),
        isolation=data.draw(st.sampled_from(["auto", "none", "cgpu", "mps"]), "isolation"),
        allow_unisolated=data.draw(st.booleans(), "unisolated"),
        gpu_sets=data.draw(st.booleans(), "sets"),
    )
    drivers = {name: Layer(driver=name, installed=False) for name in ("cgpu", "mps")}
    return node.isolation(layers=drivers, unreported=frozenset(drivers))


@given(st.data())
def test_whatever_happens_a_low_amount_has_a_problem_that_explains_it(data):
    node = a_node(data)
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=25), "history"):
        action(node, data)
        assert unexplained(node.state) == []


@given(st.data())
def test_on_a_node_that_was_ready_a_low_amount_has_a_problem_that_explains_it(data):
    """Histories that begin where most nodes are: everything was read and works."""
    node = a_node(data)
    mode = node.state.node.mode
    node.isolation(layers={"cgpu": WORKS}, unreported=frozenset())
    node.inventory(*(gpu(n) for n in range(MOST_GPUS))).holdings().label(str(mode))
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=25), "history"):
        action(node, data)
        assert unexplained(node.state) == []


@given(st.data())
def test_whatever_happens_a_node_that_serves_has_a_usable_gpu_or_is_not_ready(data):
    node = a_node(data)
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=25), "history"):
        action(node, data)
        state = node.state
        if serves_gpus(state) and not usable_gpus(state) and not state.health.unasked:
            assert any(problem.blocking for problem in problems(state))
        if usable_gpus(state):
            said = {problem.reason for problem in problems(state)}
            assert not said & {"MemoryUnitTooLarge", "NoUsableGPU", "NoGPUs"}, "these say that nothing is left"


WORKS = Layer(driver="cgpu", installed=True, isolates=frozenset(Isolates), modes=frozenset(Mode))
