"""What a reading says of each container, and what it does not say."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import ContainerRef, ContainerSpec, Pod, PodName
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import GpuProcess, GpuSample, Samples, use
from gpuagent.domain.usage.guarantee import shares
from gpuagent.domain.usage.held_use import held_uses
from gpuagent.domain.usage.over_time import HeldUse
from gpuagent.domain.usage.process_cgroup import ProcessContainer
from tests.unit.domain.builders import gpu, holding, owner, state_of, unit_ids, uuid
from tests.unit.domain.dra.prepared_claims import claiming, prepared

GIB = 1 << 30
ID = "{:064x}".format


def pod(name: str, number: int) -> Pod:
    return Pod(
        PodName("ml", name), f"uid-{name}", "", {}, (ContainerSpec("main", {}),), container_ids={ID(number): "main"}
    )


A_ALONE = state_of(pods=(pod("a", 1),), holdings=(holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1)),))
BOTH = state_of(
    pods=(pod("a", 1), pod("b", 2)),
    holdings=(
        holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1)),
        holding("b", unit_ids(0, Kind.MEMORY_SHARE, 2)),
    ),
)


def reading(
    state: State, *processes: GpuProcess, busy: float | None = 0.5, failing: bool = False
) -> dict[str, HeldUse]:
    """By pod on GPU 0."""
    sample = GpuSample(uuid=uuid(0), at=0, busy=busy, processes=processes)
    samples = Samples({uuid(0): sample}, {uuid(0): "hangs"} if failing else {}, pids_seen=True)
    held = shares(state)
    uses = held_uses(state, held, use(samples, state, held), samples)
    return {key_owner.pod.name: held_use for (key_uuid, key_owner), held_use in uses.items() if key_uuid == uuid(0)}


def process(number: int, busy: float | None) -> GpuProcess:
    return GpuProcess(number, GIB, busy, ProcessContainer(ID(number)))


def test_held_memory_is_joined_with_the_use_of_each_container() -> None:
    assert reading(BOTH, process(1, 0.25)) == {
        "a": HeldUse("uid-a", 2 * GIB, GIB, 0.25),
        "b": HeldUse("uid-b", GIB, 0, 0.0),
    }


def test_the_last_sample_of_a_gpu_that_does_not_answer_says_nothing_about_now() -> None:
    assert reading(BOTH, process(1, 0.25), failing=True)["a"] == HeldUse("uid-a", 2 * GIB, None, None)


def test_without_a_sample_the_use_is_not_known() -> None:
    held = shares(A_ALONE)
    uses = held_uses(A_ALONE, held, use(Samples(), A_ALONE, held), Samples())
    assert uses == {(uuid(0), owner("a")): HeldUse("uid-a", 2 * GIB, None, None)}


def test_without_the_hosts_processes_the_work_of_the_gpu_says_who_is_idle_and_nothing_who_uses_its_memory() -> None:
    """As in a pod without `hostPID`: the samples have no container of a process."""
    sample = GpuSample(uuid=uuid(0), at=0, busy=0.0, processes=(GpuProcess(1, GIB, 0.0, None),))
    samples = Samples({uuid(0): sample}, pids_seen=False)
    held = shares(BOTH)
    uses = held_uses(BOTH, held, use(samples, BOTH, held), samples)
    assert uses[uuid(0), owner("a")] == HeldUse("uid-a", 2 * GIB, None, 0.0)


def test_work_that_is_not_reported_by_process_is_that_of_the_only_holder() -> None:
    assert reading(A_ALONE, process(1, None))["a"].busy == 0.5


def test_among_several_holders_it_is_not_known_unless_the_gpu_does_not_work_at_all() -> None:
    assert reading(BOTH, process(1, None))["a"].busy is None
    assert reading(BOTH, process(1, None), busy=0.0)["a"].busy == 0.0
    assert reading(BOTH, process(1, None), busy=None)["a"].busy is None


def test_containers_that_use_one_claim_have_equal_parts_of_it() -> None:
    """Each has all of it as its limit; the sum of what is held must not be more than the claim."""
    claim = prepared("one", gpu(0), mib=4096)
    pods = (parse_pod(claiming("a", "one")), parse_pod(claiming("b", "one")))
    state = state_of(Mode.DRA, (gpu(0),), ev.ClaimsPrepared((claim,), 1.0), ev.DraRegistered(None, 1.0), pods=pods)
    assert {name: use_.held_bytes for name, use_ in reading(state).items()} == {"a": 2 * GIB, "b": 2 * GIB}


def test_a_gpu_that_another_plugin_gave_has_no_known_size_for_its_container() -> None:
    state = state_of(Mode.DEFAULT, holdings=(holding("a", [uuid(0)], "nvidia.com/gpu"),))
    held = shares(state)
    uses = held_uses(state, held, use(Samples(), state, held), Samples())
    assert uses[uuid(0), ContainerRef(PodName("ml", "a"), "main")].held_bytes is None


@pytest.mark.parametrize(
    ("mode", "kind", "limited"),
    [
        (Mode.SHARE, Kind.MEMORY_SHARE, False),
        (Mode.CGPU, Kind.MEMORY_CGPU, True),
        (Mode.MPS, Kind.MEMORY_MPS, True),
        (Mode.TOPOLOGY, Kind.WHOLE_TOPOLOGY, True),
    ],
)
def test_a_share_is_limited_where_the_mode_isolates_memory_or_gives_the_whole_gpu(
    mode: Mode, kind: Kind, limited: bool
) -> None:
    state = state_of(mode, holdings=(holding("a", unit_ids(0, kind, 0)),))
    held = shares(state)
    (held_use,) = held_uses(state, held, use(Samples(), state, held), Samples()).values()
    assert held_use.limited is limited
