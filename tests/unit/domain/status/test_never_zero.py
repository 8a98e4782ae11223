"""Never zero without a word: where a GPU gives less than it could, a problem says why, whatever happened before."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import slice_specs
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Gpu, UnreadableGpu
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION, FormerGpu, former_gpus_text
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import DISABLE_LABEL, DRA_DRIVER, Isolates, Kind, Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit, parse_id, units_of
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
    "InvalidIdleLabel",
    "InvalidModeLabel",
    "InvalidPlacementLabel",
    "MixedGPUs",
    "ModeNotSaved",
    "NonContiguousGPUMinors",
    "PodsUnavailable",
    "PreferredAllocationUnsupported",
    "ReportNotWritten",
    "StartupTaint",
    "UntrustedDaemon",
}
"""Problems that take no unit away. Each other reason may be why an amount is low, if its message names what is low."""


@dataclass(frozen=True)
class Shortfall:
    """A GPU that gives less of a resource than its mode promises, or than it gave before."""

    gpu: Gpu
    resource: str


class HistoryNode(NodeUnderTest):
    """A node that remembers what the driver said last of the memory of each GPU, by UUID in MiB."""

    def __init__(self, *arguments: Any, **policy: Any) -> None:
        super().__init__(*arguments, **policy)
        self.reported_mib: dict[str, int] = {}


def former_size(each: Gpu, state: State) -> Gpu:
    """The GPU with the memory that it, or the one in its place, had in an earlier run if that was more."""
    sizes = [each.memory_mib]
    for name, former in state.node.former_gpus.items():
        is_replaced = former.pci == each.pci_bus_id and name not in state.gpus.by_uuid
        if name == each.uuid or is_replaced:
            sizes.append(former.memory_mib)
    return replace(each, memory_mib=max(sizes))


def missing(state: State) -> Iterator[Gpu]:
    """GPUs of an earlier run that are not there now, each with the number that its UUID has in this test."""
    addresses = {each.pci_bus_id for each in state.gpus.by_index}
    for n in range(MOST_GPUS):
        is_known = uuid(n) in state.node.former_gpus
        if is_known and uuid(n) not in state.gpus.by_uuid and gpu(n).pci_bus_id not in addresses:
            yield gpu(n)


def shortfalls(state: State) -> Iterator[Shortfall]:
    """Of every GPU that the agent has read, in the mode in force."""
    for resource, kind in state.resource_kinds.items():
        offered = {block.gpu.uuid: block for block in state.advertised.lists[resource] if block.kind is kind}
        for each in state.gpus.by_index:
            block = offered.get(each.uuid)
            healthy = block.count if block and block.healthy else 0
            promised = 0 if each.mig else units_of(former_size(each, state), kind, state.policy.unit)
            if healthy < max(1, promised, units_of(each, kind, state.policy.unit)):
                yield Shortfall(each, resource)
        for each in missing(state):
            yield Shortfall(each, resource)
    if state.node.mode is Mode.DRA:
        yield from _claims_shortfalls(state)


def _claims_shortfalls(state: State) -> Iterator[Shortfall]:
    """GPUs that no further claim can get, in the slices that the agent wants."""
    devices = [device for spec in slice_specs(state, "n").values() for device in spec.get("devices", ())]
    of_gpus = [device for device in devices if "uuid" in device["attributes"]]
    free = {device["attributes"]["uuid"]["string"] for device in of_gpus if not device.get("taints")}
    unit = state.policy.unit
    for each in state.gpus.by_index:
        is_smaller = each.memory_mib // unit.mib < former_size(each, state).memory_mib // unit.mib
        if each.uuid not in free or is_smaller:
            yield Shortfall(each, DRA_DRIVER)
    for each in missing(state):
        yield Shortfall(each, DRA_DRIVER)


def explains(problem: Problem, shortfall: Shortfall, state: State) -> bool:
    """A problem explains a shortfall if it names the GPU, its resource, its mode, or what the whole node lacks."""
    if problem.reason in SAYS_NOTHING_OF_AMOUNTS:
        return False
    names = (shortfall.gpu.uuid, f"GPU {shortfall.gpu.index} ", shortfall.resource, f"mode {state.node.mode}")
    about_all = problem.message.startswith(("all ", "none of the "))
    whole_node = about_all or problem.reason == "DriverUnavailable" or "no GPUs are advertised" in problem.message
    # One that cannot be read may be one that was there before: it is not known which.
    if shortfall.gpu.uuid not in state.gpus.by_uuid and problem.reason == "GPUUnreadable":
        return True
    return whole_node or any(name in problem.message for name in names)


def unexplained(state: State) -> list[Shortfall]:
    found = problems(state)
    return [s for s in shortfalls(state) if not any(explains(problem, s, state) for problem in found)]


# -- histories -----------------------------------------------------------------------------------------------

Action = Callable[[HistoryNode, st.DataObject], Any]


def some_gpus(data: st.DataObject) -> set[int]:
    return data.draw(st.sets(st.integers(0, MOST_GPUS - 1)), "GPUs")


def a_reason(data: st.DataObject) -> str | None:
    return data.draw(st.sampled_from([None, "it is broken"]), "reason")


def inventory(node: HistoryNode, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from(SIZES_MIB), min_size=MOST_GPUS, max_size=MOST_GPUS), "sizes")
    listed = some_gpus(data)
    unreadable = some_gpus(data) - listed if data.draw(st.booleans(), "some unreadable") else set()
    mig = some_gpus(data) if data.draw(st.booleans(), "MIG") else set()
    read = [gpu(n, memory_mib=sizes[n], mig=n in mig) for n in sorted(listed)]
    node.inventory(*read, unreadable=tuple(UnreadableGpu(n, "it is broken") for n in sorted(unreadable)))
    node.reported_mib |= {each.uuid: each.memory_mib for each in read if not each.mig}


def grown_or_shrunk(node: HistoryNode, data: st.DataObject) -> None:
    """All GPUs are there, and one of them has another size than before."""
    resized = data.draw(st.integers(0, MOST_GPUS - 1), "resized")
    read = [gpu(n, memory_mib=node.reported_mib.get(uuid(n), SIZES_MIB[-2])) for n in range(MOST_GPUS)]
    read[resized] = replace(read[resized], memory_mib=data.draw(st.sampled_from(SIZES_MIB), "size"))
    node.inventory(*read)
    node.reported_mib |= {each.uuid: each.memory_mib for each in read}


def driver(node: HistoryNode, _data: st.DataObject) -> None:
    node.send(ev.DriverUnavailable("it is broken", node.now))


def label(node: HistoryNode, data: st.DataObject) -> None:
    seen = node_json(data.draw(st.sampled_from([None, "bogus", *map(str, Mode)]), "label"))
    if data.draw(st.integers(0, 4), "another plugin") == 0:
        seen["status"] = {"allocatable": {"nvidia.com/gpu": "2"}}
    if data.draw(st.integers(0, 4), "isolation off") == 0:
        seen["metadata"]["labels"][DISABLE_LABEL] = "true"
    known = known_gpus(node, data)
    if known is not None:
        seen["metadata"]["annotations"] = {KNOWN_GPUS_ANNOTATION: known}
    node.send(ev.NodeSeen(seen, node.now))


def known_gpus(node: HistoryNode, data: st.DataObject) -> str | None:
    """The Node's annotation of the GPUs that it had: removed, as the agent wants it, or as an earlier run left it."""
    match data.draw(st.sampled_from(["removed", "current", "earlier"]), "known GPUs"):
        case "current":
            return node_annotations(node.state).get(KNOWN_GPUS_ANNOTATION)
        case "earlier":
            return earlier_run(sorted(some_gpus(data)), data)
    return None


def earlier_run(gpus: Iterable[int], data: st.DataObject) -> str:
    """The annotation of a run in which these GPUs had other sizes."""
    sizes = {n: data.draw(st.sampled_from(SIZES_MIB), "size before") for n in gpus}
    return former_gpus_text({uuid(n): FormerGpu(gpu(n).pci_bus_id, mib) for n, mib in sizes.items()})


def time_passes(node: HistoryNode, data: st.DataObject) -> None:
    node.wait(data.draw(st.sampled_from([0.1, 1.0, 3.0, 20.0, 100.0, 4000.0]), "seconds"))


def health(node: HistoryNode, data: st.DataObject) -> None:
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


def fence(node: HistoryNode, data: st.DataObject) -> None:
    named = some_gpus(data)
    read = ev.FenceRead(Fence(indexes=frozenset(map(str, named))), node.now)
    node.send(data.draw(st.sampled_from([read, ev.FenceUnreadable("it is broken", node.now)]), "event"))


def allocations(node: HistoryNode, data: st.DataObject) -> None:
    if data.draw(st.integers(0, 3), "kubelet is silent") == 0:
        node.send(ev.HoldingsUnavailable("it is broken", node.now))
        return
    held = []
    for n in sorted(some_gpus(data)):
        kind = data.draw(st.sampled_from(list(Kind)), "kind")
        # The highest ones may be from a time when the GPU was larger.
        numbers = data.draw(st.sets(st.sampled_from([0, 1, 14, 15]), min_size=1), "units")
        held.append(holding(f"pod-{n}", unit_ids(n, kind, *numbers), Resources("nvidia.com/gpu").of(kind)))
    if data.draw(st.booleans(), "another plugin's pod"):
        held.append(holding("other", [uuid(0)], "nvidia.com/gpu"))
    node.holdings(*held)


def calls(node: HistoryNode, _data: st.DataObject) -> None:
    if node.state.allocates.in_flight:
        node.allocate_ends()
    else:
        node.allocate_begins()


def registration(node: HistoryNode, data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from(node.state.policy.resources.names), "resource")
    problem = a_reason(data)
    node.send(ev.RegistrationChanged(resource, problem, node.now, connected=problem is None))


def layer(node: HistoryNode, data: st.DataObject) -> None:
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


def api_server(node: HistoryNode, data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(["node", "pods", "slices"]), "what")
    node.send(ev.ApiUnavailable("it is broken", node.now, what))


def claims(node: HistoryNode, data: st.DataObject) -> None:
    known = [node.state.gpus.by_uuid[uuid(n)] for n in some_gpus(data) if uuid(n) in node.state.gpus.by_uuid]
    unreadable = data.draw(st.integers(0, 4), "unreadable") == 0
    made = [prepared("a", *known)] if known or unreadable else []
    node.send(ev.ClaimsPrepared(tuple(made), node.now))


def slices(node: HistoryNode, data: st.DataObject) -> None:
    """The API server gets what the agent wants, or refuses it."""
    problem = a_reason(data)
    node.send(ev.SliceWritten(problem, node.now))
    if problem is None:
        specs = slice_specs(node.state, "n")
        node.send(ev.SlicesSeen({name: {"spec": spec} for name, spec in specs.items()}, node.now))


def dra_driver(node: HistoryNode, data: st.DataObject) -> None:
    events = [ev.DraRegistered(a_reason(data), node.now), ev.DraStopped(node.now)]
    node.send(data.draw(st.sampled_from(events), "event"))


ACTIONS: list[Action] = [
    inventory,
    grown_or_shrunk,
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


def a_node(data: st.DataObject) -> HistoryNode:
    node = HistoryNode(
        data.draw(st.sampled_from(list(Mode)), "mode"),
        unit=MemoryUnit(data.draw(st.sampled_from(UNITS_MIB), "unit")),
        resources=Resources(data.draw(st.sampled_from([None, "nvidia.com/gpu"]), "exclusive")),
        isolation=data.draw(st.sampled_from(["auto", "none", "cgpu", "mps"]), "isolation"),
        allow_unisolated=data.draw(st.booleans(), "unisolated"),
        gpu_sets=data.draw(st.booleans(), "sets"),
    )
    drivers = {name: Layer(driver=name, installed=False) for name in ("cgpu", "mps")}
    node.isolation(layers=drivers, unreported=frozenset(drivers))
    return node


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


def oversold(node: HistoryNode) -> list[str]:
    """GPUs whose free and held units are together more memory than the driver reports."""
    state = node.state
    held = {unit for each in state.living_holdings for unit in map(parse_id, each.ids) if unit is not None}
    sold = []
    for resource, kind in state.resource_kinds.items():
        for block in state.advertised.lists[resource] if kind.is_memory else ():
            unlisted = [unit for unit in held if (unit.gpu_key, unit.kind) == (block.gpu.key, kind)]
            beyond = sum(unit.n >= block.count for unit in unlisted)
            mib = (block.count + beyond) * state.policy.unit.mib
            is_offered = block.healthy and block.count and block.kind is kind
            if is_offered and mib > node.reported_mib.get(block.gpu.uuid, block.gpu.memory_mib):
                sold.append(block.gpu.uuid)
    return sold


def a_ready_node(data: st.DataObject) -> HistoryNode:
    """The agent has just read everything, and it works. GPUs may not be as an earlier run left them."""
    node = a_node(data)
    mode = node.state.node.mode
    node.isolation(layers={"cgpu": WORKS}, unreported=frozenset())
    seen = node_json(str(mode))
    seen["metadata"]["annotations"] = {KNOWN_GPUS_ANNOTATION: earlier_run(range(MOST_GPUS), data)}
    node.send(ev.NodeSeen(seen, node.now))
    sizes = data.draw(st.lists(st.sampled_from(SIZES_MIB), min_size=MOST_GPUS, max_size=MOST_GPUS), "sizes")
    there = [gpu(n, memory_mib=mib) for n, mib in enumerate(sizes)]
    node.inventory(*there)
    node.reported_mib |= {each.uuid: each.memory_mib for each in there}
    held = []
    kinds = [kind for kind in Kind if kind.mode is mode]
    any_held = kinds and data.draw(st.booleans(), "held")
    for n in sorted(some_gpus(data)) if any_held else ():
        numbers = data.draw(st.sets(st.integers(0, 20), min_size=1), "units")
        held.append(holding(f"pod-{n}", unit_ids(n, kinds[0], *numbers), Resources("nvidia.com/gpu").of(kinds[0])))
    node.holdings(*held)
    return node


@given(st.data())
def test_after_a_restart_a_low_amount_has_a_problem_that_explains_it(data):
    node = a_ready_node(data)
    assert unexplained(node.state) == []
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=5), "history"):
        action(node, data)
        assert unexplained(node.state) == []


@given(st.data())
def test_whatever_happens_no_more_memory_is_sold_than_there_is(data):
    node = a_ready_node(data)
    assert oversold(node) == []
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=25), "history"):
        action(node, data)
        assert oversold(node) == []


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
