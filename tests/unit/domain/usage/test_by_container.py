"""Processes are joined with the right containers, and what is not known is not 0."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, ContainerSpec, Pod, PodName
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MIB
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import GpuProcess, GpuSample, Samples, Use, Used, use
from gpuagent.domain.usage.guarantee import Share, shares
from gpuagent.domain.usage.process_cgroup import ProcessContainer, parse_cgroup
from tests.unit.domain.builders import CORE, MEM, WHOLE, box, holding, owner, state_of, unit_ids, uuid

ID = "{:064x}".format
GIB = 1 << 30


def pod(name: str, ids: dict[str, str], containers: tuple[str, ...] = ("main",), **changes: Any) -> Pod:
    specs = tuple(ContainerSpec(container, {}) for container in containers)
    known = Pod(PodName("ml", name), f"uid-{name}", "", {}, specs, container_ids=ids)
    return replace(known, **changes)


def state(*pods: Pod, **facts: Any) -> State:
    return state_of(**{"pods": pods, **facts})


def process(
    place: ProcessContainer | None, memory: int | None = GIB, busy: float | None = 0.25, pid: int = 1
) -> GpuProcess:
    return GpuProcess(pid, memory, busy, place)


def used(known: State, *processes: GpuProcess, pids_seen: bool = True, gpu: int = 0) -> Use:
    samples = Samples({uuid(gpu): GpuSample(uuid=uuid(gpu), at=0, processes=processes)}, pids_seen=pids_seen)
    return use(samples, known, shares(known))


def test_processes_of_a_container_add_up_by_its_id() -> None:
    known = state(pod("a", {ID(1): "main", ID(2): "side"}, ("main", "side")), pod("b", {ID(3): "main"}))
    got = used(
        known,
        process(ProcessContainer(ID(1))),
        process(ProcessContainer(ID(1)), GIB // 2),
        process(ProcessContainer(ID(3))),
        process(ProcessContainer(ID(2))),
    )
    assert got.by_container == {
        (uuid(0), owner("a")): Used(GIB + GIB // 2, 0.5),
        (uuid(0), owner("b")): Used(GIB, 0.25),
        (uuid(0), owner("a", "side")): Used(GIB, 0.25),
    }
    assert got.strays == {uuid(0): 0}


def test_an_id_counts_only_for_the_pod_that_the_process_is_in() -> None:
    victim, other = pod("victim", {ID(1): "main"}), pod("other", {}, ("main", "side"))
    got = used(
        state(victim, other),
        process(ProcessContainer(ID(1), "uid-other")),
        process(ProcessContainer(ID(1), "uid-victim")),
    )
    assert got.by_container == {(uuid(0), owner("victim")): Used(GIB, 0.25)}
    assert got.strays == {uuid(0): 1}


def test_a_neighbours_name_within_a_container_takes_nothing_over() -> None:
    """Whoever may write cgroups in a container may call them after a neighbour: before the own id is known, and after."""
    uids = {"victim": "6f1c2e4a-0b1d-4c3e-9f00-1234567890ab", "evil": "7f1c2e4a-0b1d-4c3e-9f00-1234567890ab"}
    victim = pod("victim", {ID(1): "main"}, uid=uids["victim"])
    for ids, ended in (({ID(2): "main"}, False), ({}, False), ({ID(2): "main"}, True)):
        known = state(victim, pod("evil", ids, uid=uids["evil"], ended=ended))
        for within in ("", f"/{ID(1)}", f"/pod{uids['victim']}/{ID(1)}", f"/pod{uids['victim']}"):
            place = parse_cgroup(f"0::/kubepods/pod{uids['evil']}/{ID(2)}{within}\n")
            expected = set() if ended else {(uuid(0), owner("evil"))}
            assert set(used(known, process(place)).by_container) == expected, (ids, ended, within)


def test_a_pod_of_a_file_is_found_by_its_containers() -> None:
    """Its cgroup has the hash of the file for a UID, which the API server's pod has not."""
    got = used(state(pod("static", {ID(1): "main"})), process(ProcessContainer(ID(1), "9a" * 16)))
    assert set(got.by_container) == {(uuid(0), owner("static"))}


def test_a_process_of_no_known_container_is_a_stray() -> None:
    known = state(pod("a", {ID(1): "main"}), pod("gone", {ID(2): "main"}, ended=True))
    got = used(
        known,
        process(None),
        process(ProcessContainer()),
        process(ProcessContainer(ID(7), "uid-x")),
        process(ProcessContainer(ID(2), "uid-gone")),
    )
    assert got.by_container == {}
    assert got.strays == {uuid(0): 4}


UNKNOWN_PLACES = (
    None,  # ended, or hidden
    ProcessContainer(),  # of a runtime with other names, or of the host
    ProcessContainer(ID(9)),  # started past kubelet
)


@pytest.mark.parametrize("place", UNKNOWN_PLACES)
def test_work_that_may_be_of_any_container_leaves_none_of_them_idle(place: ProcessContainer | None) -> None:
    ids = [unit_ids(0, Kind.MEMORY_SHARE, n) for n in range(3)]
    holds = [holding(name, of_pod) for name, of_pod in zip(("busy", "idle", "none"), ids, strict=True)]
    known = state(pod("busy", {ID(1): "main"}), pod("idle", {ID(2): "main"}), pod("none", {}), holdings=tuple(holds))
    got = used(known, process(ProcessContainer(ID(1))), process(ProcessContainer(ID(2)), busy=0.0), process(place))
    assert got.by_container == {
        (uuid(0), owner("busy")): Used(GIB, 0.25),
        (uuid(0), owner("idle")): Used(GIB, None),
    }


def test_work_of_one_pod_leaves_the_others_idle() -> None:
    two = [holding("two", unit_ids(0, Kind.MEMORY_SHARE, n), container=str(n)) for n in range(2)]
    holds = (*two, holding("none", unit_ids(0, Kind.MEMORY_SHARE, 2)))
    known = state(pod("two", {}, ("0", "1")), pod("none", {}), holdings=holds)
    got = used(known, process(ProcessContainer(ID(5), "uid-two")))
    assert got.by_container == {(uuid(0), owner("none")): Used()}
    assert got.strays == {uuid(0): 1}


@pytest.mark.parametrize(
    "place",
    [
        ProcessContainer(of_agent=True),  # a server of MPS
        ProcessContainer(ID(5), "uid-of-no-pod-with-a-gpu"),
    ],
)
def test_work_of_neither_leaves_all_of_them_idle(place: ProcessContainer) -> None:
    known = state(pod("none", {}), holdings=(holding("none", unit_ids(0, Kind.MEMORY_SHARE, 1)),))
    assert used(known, process(place)).by_container == {(uuid(0), owner("none")): Used()}


def test_work_of_an_unknown_pod_may_be_that_of_a_container_whose_pod_is_not_known_yet() -> None:
    known = state(pod("other", {}), holdings=(holding("new", unit_ids(0, Kind.MEMORY_SHARE, 1)),))
    assert used(known, process(ProcessContainer(ID(5), "uid-new"))).by_container == {}


def test_an_id_that_is_not_known_yet_is_found_by_the_pod_if_that_leaves_no_choice() -> None:
    holds = holding("two", unit_ids(0, Kind.MEMORY_SHARE, 1), container="side")
    known = state(
        pod("one", {}), pod("two", {}, ("main", "side")), pod("three", {}, ("main", "side")), holdings=(holds,)
    )
    places = [ProcessContainer(ID(5), f"uid-{name}") for name in ("one", "two", "three")]
    got = used(known, *map(process, places))
    assert set(got.by_container) == {(uuid(0), owner("one")), (uuid(0), owner("two", "side"))}
    assert got.strays == {uuid(0): 1}


def test_without_an_api_server_kubelets_checkpoint_names_the_pod() -> None:
    ids = unit_ids(0, Kind.MEMORY_SHARE, 1)
    entry = CheckpointEntry("uid-a", "main", MEM, ids)
    known = state(holdings=(holding("a", ids),), checkpoint=(entry,), pods=None)
    assert set(used(known, process(ProcessContainer(None, "uid-a"))).by_container) == {(uuid(0), owner("a"))}


def test_what_the_driver_does_not_report_of_one_process_is_not_known_of_its_container() -> None:
    known = state(pod("a", {ID(1): "main"}))
    place = ProcessContainer(ID(1))
    got = used(known, process(place), process(place, None, None)).by_container
    assert got == {(uuid(0), owner("a")): Used(None, None)}


def test_a_holder_without_processes_uses_nothing_only_if_its_processes_would_be_seen() -> None:
    held = (holding("a", unit_ids(0, Kind.MEMORY_SHARE, 1)),)
    known = state(holdings=held)
    assert used(known).by_container == {(uuid(0), owner("a")): Used(0, 0.0)}
    unsure = used(known, process(None), pids_seen=False)
    assert (unsure.by_container, unsure.pids_seen) == ({}, False)
    other = state(pod("b", {ID(1): "main"}), holdings=held)
    proven = used(other, process(ProcessContainer(ID(1))), pids_seen=False)
    assert (set(proven.by_container), proven.pids_seen) == ({(uuid(0), owner("a")), (uuid(0), owner("b"))}, True)


def test_a_gpu_that_reports_no_processes_reports_nothing_of_containers() -> None:
    known = state(holdings=(holding("a", unit_ids(0, Kind.MEMORY_SHARE, 1)),))
    samples = Samples({uuid(0): GpuSample(uuid=uuid(0), at=0, memory_used_bytes=5)}, pids_seen=True)
    assert use(samples, known, shares(known)) == Use({}, {}, True)


def test_one_container_on_two_gpus_and_two_on_one() -> None:
    both = unit_ids(0, Kind.MEMORY_SHARE, 1, 2) | unit_ids(1, Kind.MEMORY_SHARE, 1)
    known = state(holdings=(holding("a", both), holding("b", unit_ids(0, Kind.MEMORY_SHARE, 3))))
    assert shares(known) == {
        (uuid(0), owner("a")): Share(2 * GIB, None, Mode.SHARE),
        (uuid(1), owner("a")): Share(GIB, None, Mode.SHARE),
        (uuid(0), owner("b")): Share(GIB, None, Mode.SHARE),
    }


def test_memory_and_compute_of_one_container_are_one_share() -> None:
    memory, core = unit_ids(0, Kind.MEMORY_CORE_MEM, *range(4)), unit_ids(0, Kind.CORE_CORE_MEM, *range(30))
    known = state(holdings=(holding("a", memory), holding("a", core, CORE)), mode=Mode.CORE_MEM)
    assert shares(known) == {(uuid(0), owner("a")): Share(4 * GIB, 0.3, Mode.CORE_MEM)}


def test_isolated_memory_is_a_part_of_all_the_gpu_has() -> None:
    """15.5 GiB make 15 units, and what isolates gives each a fifteenth; without isolation a GiB is a GiB."""
    (gpu,) = box(1)
    gpu = replace(gpu, memory_mib=15872)
    for kind, mib in ((Kind.MEMORY_MPS, 15872 * 3 // 15), (Kind.MEMORY_SHARE, 3 * 1024)):
        known = state(gpus=[gpu], holdings=(holding("a", unit_ids(0, kind, 1, 2, 3)),))
        assert [share.memory_bytes for share in shares(known).values()] == [mib * MIB]


def test_a_whole_gpu_is_all_of_it_and_one_of_another_plugin_is_not_known() -> None:
    ours = holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    theirs = holding("b", [uuid(1)], "nvidia.com/gpu")
    assert shares(state(holdings=(ours, theirs))) == {
        (uuid(0), owner("a")): Share(16 * GIB, 1.0, Mode.TOPOLOGY),
        (uuid(1), owner("b")): Share(None, None, None),
    }


def test_container_ids_are_read_from_every_list_of_a_pods_status() -> None:
    parsed = parse_pod(
        {
            "status": {
                "containerStatuses": [
                    {"name": "main", "containerID": f"containerd://{ID(1)}"},
                    {"name": "waits", "containerID": ""},
                ],
                "initContainerStatuses": [
                    {"name": "init", "containerID": f"cri-o://{ID(2)}"},
                    {"name": "odd", "containerID": 7},
                ],
                "ephemeralContainerStatuses": [{"name": "debug", "containerID": f"docker://{ID(3)}"}, "x"],
            }
        }
    )
    assert parsed.container_ids == {ID(1): "main", ID(2): "init", ID(3): "debug"}


def test_a_restarted_container_is_found_by_its_new_id() -> None:
    before, after = state(pod("a", {ID(1): "main"})), state(pod("a", {ID(2): "main"}))
    place = ProcessContainer(ID(2), "uid-a")
    for known in (before, after):  # before the status is new, the pod leaves no choice
        assert set(used(known, process(place)).by_container) == {(uuid(0), owner("a"))}
    assert ContainerRef(PodName("ml", "a"), "main") == owner("a")
