"""What each isolation driver is told of the node, where two of them serve together."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.isolation_layers import LIMITS, LIMITS_AND_MPS, MPS, Layer
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.status.problems import problems
from gpuagent.isolation.need import isolation_needs
from tests.unit.domain.builders import CORE, MEM, NodeUnderTest, box, holding, in_force, pod_json, unit_ids, uuid
from tests.unit.domain.dra.prepared_claims import claiming, prepared
from tests.unit.isolation.test_paired import WORKING

GIB = 2**30
DRIVERS = (LIMITS, MPS)
SHARE = PodShares({uuid(0): 4 * GIB}, {"main": {uuid(0): 4 * GIB}})


def node(mode: Mode, kind: Kind | None = None) -> NodeUnderTest:
    """A node with both drivers, in a mode; with `kind`, pod `p` has four units of it."""
    made = NodeUnderTest(mode, box(2))
    made.isolation(layers=WORKING)
    if kind:
        ids = unit_ids(0, kind, *range(4))
        entry = CheckpointEntry("uid-p", "main", MEM, ids)
        made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, (entry,)))
    return made


@pytest.mark.parametrize(
    ("mode", "kind", "told"),
    [
        (Mode.CGPU, Kind.MEMORY_CGPU, {LIMITS}),
        (Mode.CORE_MEM, Kind.MEMORY_CORE_MEM, {LIMITS, MPS}),
        (Mode.MPS, Kind.MEMORY_MPS, {LIMITS, MPS}),
        (Mode.SHARE, Kind.MEMORY_SHARE, set()),
    ],
)
def test_each_driver_of_a_pair_is_told_the_pods(mode, kind, told):
    needs = isolation_needs(node(mode, kind).state, DRIVERS)
    assert {driver for driver, need in needs.items() if need.pods == {"uid-p": SHARE}} == told
    assert {driver for driver, need in needs.items() if need.pods} == told
    assert {driver for driver, need in needs.items() if need.held} == told
    assert {driver for driver, need in needs.items() if need.serves} == told


def test_pods_of_a_former_mode_stay_limited():
    """Containers keep the limits that they started with, whichever mode the node has now."""
    needs = isolation_needs(node(Mode.CGPU, Kind.MEMORY_CORE_MEM).state, DRIVERS)
    assert needs[LIMITS].pods == needs[MPS].pods == {"uid-p": SHARE}
    assert (needs[LIMITS].serves, needs[MPS].serves) == (True, False)


def test_claims_of_a_pair_reach_both_drivers():
    made = node(Mode.DRA).pods(claiming("p", "both"), claiming("q", "one"), claiming("r", "none"))
    claims = (
        prepared("both", box()[0], layer=LIMITS_AND_MPS),
        prepared("one", box()[0], layer=LIMITS),
        prepared("none", box()[1]),
    )
    made.send(ev.ClaimsPrepared(claims, made.now))
    needs = isolation_needs(made.state, DRIVERS)
    of_claims = replace(SHARE, of_claims=True)
    assert needs[LIMITS].pods == {"uid-p": of_claims, "uid-q": of_claims}
    assert needs[MPS].pods == {"uid-p": of_claims}


def test_no_driver_takes_a_list_of_pods_for_complete_before_it_was_read():
    made = NodeUnderTest(Mode.CGPU).inventory(*box(2)).label("cgpu")
    made.isolation(layers=WORKING)
    assert not isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods
    made.holdings()
    assert isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods


def test_a_share_that_the_checkpoint_does_not_show_is_unknown_until_it_does():
    made = node(Mode.CGPU)
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    entry = CheckpointEntry("uid-p", "main", MEM, ids)
    partly = CheckpointEntry("uid-p", "main", MEM, unit_ids(0, Kind.MEMORY_CGPU, 0))
    known = []
    for entries in ((), (partly,), (entry,)):
        made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, entries))
        known.append(isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods)
    assert known == [False, False, True]
    assert isolation_needs(node(Mode.CGPU).holdings().state, DRIVERS)[LIMITS].knows_pods, "no holdings, no entries"


def test_a_static_pod_is_named_and_does_not_end_with_its_mirror():
    """Kubelet has another UID for it than the API server, and makes a mirror again that somebody deletes."""
    made = NodeUnderTest(Mode.CGPU, box(2))
    made.isolation(layers=WORKING)
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, (CheckpointEntry("hash", "main", MEM, ids),)))
    mirror = pod_json("p", {MEM: 4}, annotations={"kubernetes.io/config.mirror": "hash"})
    mirror["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    made.pods(mirror)
    need = isolation_needs(made.state, DRIVERS)[LIMITS]
    assert need.pod_names == {"hash": "ml/p"}
    assert need.ending == {}
    usual = pod_json("p", {MEM: 4})
    usual["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    made.pods(usual)
    assert isolation_needs(made.state, DRIVERS)[LIMITS].pod_names == {}, "a later pod of the same name"


def test_claims_without_their_pods_are_no_complete_list():
    made = node(Mode.DRA).holdings()
    made.send(ev.ClaimsPrepared((prepared("one", box()[0], layer=LIMITS),), made.now))
    made.state = replace(made.state, pods=replace(made.state.pods, known=False))
    assert not isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods
    made.pods(claiming("q", "one"))
    assert isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods


@pytest.mark.parametrize(("mode", "kind"), [(Mode.CGPU, Kind.MEMORY_CGPU), (Mode.CORE_MEM, Kind.MEMORY_CORE_MEM)])
def test_a_restart_binds_nothing_before_every_driver_has_reported(mode, kind):
    """Agent and helper start together, and MPS reports first: the running containers are those of memory limits."""
    made = NodeUnderTest(mode, box(2))
    silent = {name: Layer(driver=name, installed=False) for name in WORKING}
    made.isolation(layers=silent, bound={}, unreported=frozenset(WORKING))
    ids = unit_ids(0, kind, *range(4))
    read = ev.HoldingsRead((holding("p", ids),), made.now, made.now, (CheckpointEntry("uid-p", "main", MEM, ids),))
    later = [LIMITS, *(name for name in WORKING if name not in {MPS, LIMITS})]
    for name in (MPS, *later):
        made.send(ev.LayerSeen(WORKING[name], made.now))
        made.send(read)
        if made.state.isolation.unreported:
            assert not made.state.isolation.bound
            assert not isolation_needs(made.state, DRIVERS)[LIMITS].knows_pods
    need = isolation_needs(made.state, DRIVERS)[LIMITS]
    assert need.knows_pods
    assert need.pods == {"uid-p": SHARE}


@pytest.mark.parametrize("last", ["a driver", "the inventory"])
def test_a_restart_binds_what_runs_as_soon_as_all_is_known(last):
    """Not only with the next read of kubelet's allocations: until then, a driver's next report would change it."""
    made = NodeUnderTest(Mode.CGPU)
    silent = {name: Layer(driver=name, installed=False) for name in WORKING}
    made.isolation(layers=silent, bound={}, unreported=frozenset(WORKING)).label("cgpu")
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    entry = CheckpointEntry("uid-p", "main", MEM, ids)
    if last == "a driver":
        made.inventory(*box(2))
    made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, (entry,)))
    for name in (MPS, *(name for name in WORKING if name != MPS)):
        made.send(ev.LayerSeen(WORKING[name], made.now))
    if last == "the inventory":
        made.inventory(*box(2))
    made.send(ev.LayerSeen(replace(WORKING[LIMITS], installed=False, problem="the helper restarts"), made.now))
    needs = isolation_needs(made.state, DRIVERS)
    assert needs[LIMITS].pods == {"uid-p": SHARE}
    assert not needs[MPS].pods


@pytest.mark.parametrize("setting", ["auto", "limits", "mps", "none"])
@pytest.mark.parametrize(("driver", "other"), [(LIMITS, MPS), (MPS, LIMITS)])
def test_running_containers_keep_their_driver_whatever_the_setting_is(setting, driver, other):
    """Kubelet's checkpoint has it, so an agent that starts with another setting neither ends an MPS daemon under its
    clients nor leaves memory limits alone."""
    made = NodeUnderTest(Mode.CGPU, box(2), isolation=setting)
    made.isolation(layers=WORKING)
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    entry = CheckpointEntry("uid-p", "main", MEM, ids, isolation=driver)
    made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, (entry,)))
    needs = isolation_needs(made.state, DRIVERS)
    assert needs[driver].pods == {"uid-p": SHARE}
    assert needs[driver].held
    assert not needs[other].pods
    assert not needs[other].held
    waits = [problem.message for problem in problems(made.state) if problem.reason == "IsolationChangeWaiting"]
    if setting in {"auto", driver}:
        assert waits == []
    else:
        (text,) = waits
        assert f"--isolation {setting} is not in force in mode cgpu: containers run with {driver}" in text
        assert "ml/p[main]" in text
    made.wait(1).holdings()
    assert made.state.isolation.bound == {}, "the setting is in force when they have ended"
    assert not [problem for problem in problems(made.state) if problem.reason == "IsolationChangeWaiting"]


def test_what_is_unknown_of_the_pods_is_said():
    made = NodeUnderTest(Mode.CGPU).inventory(*box(2)).label("cgpu")
    made.isolation(layers=WORKING, unreported=frozenset({MPS}))

    def unknown() -> str:
        need = isolation_needs(made.state, DRIVERS)[LIMITS]
        assert need.knows_pods == (not need.unknown)
        return need.unknown

    assert "kubelet's allocations were not read yet" in unknown()
    ids = unit_ids(0, Kind.MEMORY_CGPU, *range(4))
    made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, ()))
    assert "isolation driver mps has not reported yet" in unknown()
    made.isolation(unreported=frozenset())
    assert "checkpoint does not show the devices of ml/p[main]: mount kubelet's directory device-plugins" in unknown()
    entry = CheckpointEntry("uid-p", "main", MEM, ids)
    made.send(ev.HoldingsRead((holding("p", ids),), made.now, made.now, (entry,)))
    assert unknown() == ""


def test_containers_are_named_by_their_ids_at_the_runtime():
    pod = pod_json("p", {MEM: 4})
    pod["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{1:064x}"}]
    needs = isolation_needs(node(Mode.CGPU).pods(pod).state, DRIVERS)
    assert needs[LIMITS].containers == {f"{1:064x}": "main"}


def test_a_driver_that_is_bound_to_containers_is_told_them():
    """Containers that MPS alone began to serve stay with it after memory limits have come."""
    made = node(Mode.CORE_MEM, Kind.MEMORY_CORE_MEM)
    made.isolation(bound={Mode.CORE_MEM: MPS})
    needs = isolation_needs(made.state, DRIVERS)
    assert (needs[LIMITS].pods, needs[MPS].pods) == ({}, {"uid-p": SHARE})


def test_a_driver_is_told_the_names_of_its_pods_and_when_deleted_ones_end():
    made = in_force(Mode.CGPU, box(1))
    stays, goes = pod_json("stays", {MEM: 1}), pod_json("goes", {MEM: 1})
    other = pod_json("other", {})
    for pod in (goes, other):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    made.pods(stays, goes, other)
    held, entries = [], []
    for number, name in enumerate(("stays", "goes", "gone")):
        ids = unit_ids(0, Kind.MEMORY_CGPU, number)
        held.append(holding(name, ids))
        entries.append(CheckpointEntry(f"uid-{name}", "main", MEM, frozenset(ids)))
    made.send(ev.HoldingsRead(tuple(held), made.now, made.now, tuple(entries)))
    need = isolation_needs(made.state, ["all"])["all"]
    assert need.pods.keys() == {"uid-stays", "uid-goes", "uid-gone"}
    assert need.pod_names == {"uid-stays": "ml/stays", "uid-goes": "ml/goes"}
    assert need.ending == {"uid-goes": 1767225660.0}


# -- the largest shares ------------------------------------------------------------------------------------------------

WITHOUT_LIMITS = {**WORKING, LIMITS: replace(WORKING[LIMITS], installed=False, problem="driver 580")}
GPU_MIB = box()[0].memory_mib


def with_entries(mode: Mode, *entries: CheckpointEntry, layers: Mapping[str, Layer] = WITHOUT_LIMITS) -> NodeUnderTest:
    made = NodeUnderTest(mode, box(2))
    made.isolation(layers=layers)
    return made.send(ev.HoldingsRead((), made.now, made.now, entries))


def entry(
    pod: str, kind: Kind, units: int, resource: str = MEM, container: str = "main", on: int = 0
) -> CheckpointEntry:
    return CheckpointEntry(f"uid-{pod}", container, resource, unit_ids(on, kind, *range(units)))


def largest(made: NodeUnderTest, on: int = 0) -> GpuShare | None:
    """The largest share on a GPU."""
    known = isolation_needs(made.state, DRIVERS)[MPS].largest
    assert known is not None
    return known.get(uuid(on))


@pytest.mark.parametrize(("mode", "kind"), [(Mode.MPS, Kind.MEMORY_MPS), (Mode.CGPU, Kind.MEMORY_CGPU)])
def test_mps_is_told_the_largest_memory_share_of_each_gpu(mode, kind):
    shown = [entry("p", kind, 4), entry("q", kind, 6), entry("r", kind, 2, on=1)]
    made = with_entries(mode, *shown, entry("p", kind, 8, container="init"))
    assert largest(made) == GpuShare(GPU_MIB * 8 // 16, 100), "an init container's, too"
    assert largest(made, on=1) == GpuShare(GPU_MIB * 2 // 16, 100)
    assert largest(with_entries(mode)) is None


def test_memory_and_compute_have_the_largest_share_each():
    memory, core = Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM
    shown = [entry("p", memory, 4), entry("p", core, 50, CORE), entry("q", memory, 8), entry("q", core, 20, CORE)]
    assert largest(with_entries(Mode.CORE_MEM, *shown)) == GpuShare(GPU_MIB * 8 // 16, 50)


@pytest.mark.parametrize(
    ("kind", "units", "resource", "expected"),
    [
        (Kind.MEMORY_CORE_MEM, 4, MEM, GpuShare(GPU_MIB * 4 // 16, 100)),
        (Kind.CORE_CORE_MEM, 20, CORE, GpuShare(GPU_MIB, 20)),
    ],
)
def test_a_container_has_all_of_what_it_did_not_ask_for(kind, units, resource, expected):
    assert largest(with_entries(Mode.CORE_MEM, entry("p", kind, units, resource))) == expected


def test_where_another_driver_limits_memory_mps_does_not():
    shown = [entry("p", Kind.MEMORY_CORE_MEM, 4), entry("p", Kind.CORE_CORE_MEM, 30, CORE)]
    assert largest(with_entries(Mode.CORE_MEM, *shown, layers=WORKING)) == GpuShare(GPU_MIB, 30)


def test_a_container_of_former_units_is_not_cut_below_its_cap():
    """It had 4 of 8 units; the GPU has 16 now."""
    former = replace(entry("p", Kind.MEMORY_MPS, 4), gpu_units=frozenset([8]))
    assert largest(with_entries(Mode.MPS, former)) == GpuShare(GPU_MIB // 2, 100)


def test_claims_count_with_their_shares():
    made = NodeUnderTest(Mode.DRA, box(2)).isolation(layers=WITHOUT_LIMITS)
    claims = (
        prepared("small", box()[0], mib=4096, cores=30, layer=MPS),
        prepared("large", box()[0], mib=8192, cores=10, layer=MPS),
        prepared("other", box()[1], mib=8192, cores=10, layer=LIMITS_AND_MPS),
        prepared("none", box()[1]),
    )
    made.send(ev.ClaimsPrepared(claims, made.now)).pods()
    assert largest(made) == GpuShare(8192, 30)
    assert largest(made, on=1) == GpuShare(GPU_MIB, 10)


def test_the_largest_share_is_not_known_while_allocations_are_not():
    made = with_entries(Mode.MPS, entry("p", Kind.MEMORY_MPS, 4))
    made.send(ev.HoldingsUnavailable("kubelet is down", made.now))
    assert isolation_needs(made.state, DRIVERS)[MPS].largest is None
    made.holdings()
    assert isolation_needs(made.state, DRIVERS)[MPS].largest == {}
    assert isolation_needs(made.state, DRIVERS)[LIMITS].largest is None, "nobody asks"
