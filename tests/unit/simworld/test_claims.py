"""Worlds with ResourceClaims."""

import subprocess
import sys

import pytest

from simworld.claim_grants import expected_variables, gpu_uses, is_impossible
from simworld.claim_scenario import NOT_BESIDE_CLAIMS, draw_small_world, draw_world, with_claims
from simworld.claim_shapes import LINKED_SHAPES, MONITOR, SHAPES
from simworld.draw_claims import with_more_claims
from simworld.linked_gpus import are_linked, linked_box, wrong_sets
from simworld.parts.claim_scheduler import Part
from simworld.parts.isolation import CORES_LIMIT, MEMORY_LIMIT
from simworld.scenario import LATER_SEEDS, NEWEST_SEEDS, draw
from standin.boxes import equal_gpus

FIRST, SECOND = equal_gpus("node", 2, 80).gpus
LINKED_BOX = linked_box("node", 4, 80)

CONFLICT = """
import fcntl, os, sys
from simworld.runtime.replace import replace_machine
replace_machine()
from simworld.runtime.kernel import Process, begin, kernel
machine = begin(1)
seen = []

def lock_for(name, seconds):
    number = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    seen.append((name, round(kernel().now - 1000)))
    kernel().sleep(seconds)
    os.close(number)

first, second = Process("first"), Process("second")
machine.spawn(lambda: lock_for("first", 50), "first", first)
machine.run(lambda: bool(seen), 1)
machine.spawn(lambda: lock_for("second", 1), "second", second)
machine.run(lambda: False, 10)
assert seen == [("first", 0)], seen
machine.end(first)
machine.run(lambda: len(seen) == 2, 10)
assert [name for name, _ in seen] == ["first", "second"], seen
"""


def test_a_killed_process_gives_up_its_lock_of_a_file(tmp_path):
    subprocess.run([sys.executable, "-c", CONFLICT, str(tmp_path)], check=True, timeout=100)


@pytest.mark.parametrize("seed", range(30))
def test_claims_change_only_scenarios_that_have_them(seed):
    drawn = draw(seed)
    world = with_claims(drawn)
    if not world.has_claims:
        assert world == drawn
        return
    assert {action for action in drawn.actions if action.kind not in NOT_BESIDE_CLAIMS} <= set(world.actions)
    assert world == draw_world(seed)
    assert all(version in ("1.34", "1.36", "1.37") for version in world.nodes)


def test_some_worlds_have_claims_and_most_have_none():
    count = sum(draw_world(seed).has_claims for seed in range(300))
    assert 80 < count < 130


@pytest.mark.parametrize("seed", range(30))
def test_seeds_that_documents_name_have_no_later_shapes(seed):
    for world in (draw_world(seed), draw_small_world(seed)):
        assert not world.isolates
        assert all(action.kind != "create_shaped_claim_pod" for action in world.actions)
        assert with_more_claims(world) == world


def test_later_seeds_with_claims_have_more_shapes():
    worlds = [draw_small_world(LATER_SEEDS + number) for number in range(60)]
    shaped = [world for world in worlds if any(action.kind == "create_shaped_claim_pod" for action in world.actions)]
    assert shaped
    assert all(world.has_claims for world in shaped)
    assert len({world.isolates for world in shaped}) == 2


def test_two_shares_of_a_gpu_are_one_share_of_a_container():
    uses = gpu_uses([Part(FIRST.uuid, 4096, 10), Part(FIRST.uuid, 8192, 20)], [SECOND, FIRST])
    variables = expected_variables(uses, isolates=True)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == FIRST.uuid
    assert (variables["ALIYUN_COM_GPU_MEM_CONTAINER"], variables["ALIYUN_COM_GPU_MEM_IDX"]) == ("12", "0")
    assert (variables[MEMORY_LIMIT], variables[CORES_LIMIT]) == ("12", "30")
    assert not is_impossible(uses, isolates=True)


def test_shares_of_two_sizes_stand_in_bus_order_and_no_driver_limits_them():
    uses = gpu_uses([Part(SECOND.uuid, 8192), Part(FIRST.uuid, 4096)], [SECOND, FIRST])
    assert expected_variables(uses, isolates=False)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4,8"
    assert not is_impossible(uses, isolates=False)
    assert is_impossible(uses, isolates=True)


@pytest.mark.parametrize("part", [Part(FIRST.uuid, 0, watches=True), Part(FIRST.uuid, 81920), Part(FIRST.uuid, 0)])
def test_whole_and_watched_gpus_have_no_limits(part):
    uses = gpu_uses([part], [FIRST, SECOND])
    variables = expected_variables(uses, isolates=True)
    assert variables.pop("NVIDIA_VISIBLE_DEVICES") == FIRST.uuid
    assert set(variables.values()) == {None}


def test_a_container_has_gpus_to_use_or_to_watch():
    watched = [Part(gpu.uuid, 0, watches=True) for gpu in (FIRST, SECOND)]
    assert is_impossible(gpu_uses([*watched, Part(FIRST.uuid, 4096)], [FIRST, SECOND]), isolates=False)
    # Where it uses all that it watches, it is a container with shares.
    assert not is_impossible(gpu_uses([watched[0], Part(FIRST.uuid, 4096)], [FIRST, SECOND]), isolates=False)


@pytest.mark.parametrize("seed", range(LATER_SEEDS, LATER_SEEDS + 30))
def test_worlds_that_tables_name_have_no_linked_gpus(seed):
    for world in (draw_world(seed), draw_small_world(seed)):
        kinds = {action.args[0] for action in world.actions if action.kind == "create_shaped_claim_pod"}
        assert not world.has_links
        assert kinds <= set(SHAPES)


def test_half_of_the_newest_worlds_with_claims_have_linked_gpus():
    worlds = [draw_small_world(NEWEST_SEEDS + number) for number in range(100)]
    claims = [world for world in worlds if world.has_claims]
    linked = [world for world in claims if world.has_links]
    assert len(claims) // 4 < len(linked) < len(claims)
    assert all(world.gpus == 4 for world in linked)
    shapes = {action.args[0] for world in linked for action in world.actions if action.args}
    assert set(LINKED_SHAPES) <= shapes


def test_only_the_gpus_of_a_pair_are_linked():
    zero, one, two, _ = (gpu.uuid for gpu in LINKED_BOX.gpus)
    assert are_linked({zero, one}, LINKED_BOX)
    assert are_linked({two}, LINKED_BOX)
    assert not are_linked({one, two}, LINKED_BOX)


def single(minor):
    return _device(str(minor), "gpu", LINKED_BOX.gpus[minor].uuid)


def set_of(*minors, size=0):
    return _device(",".join(map(str, minors)), "gpu-set", "", size or len(minors))


def _device(minors, kind, uuid, size=1):
    texts = {"type": kind, "uuid": uuid, "minors": minors}
    attributes = {name: {"string": value} for name, value in texts.items()}
    return {"name": f"gpus-{minors}", "attributes": attributes | {"gpus": {"int": size}}}


SINGLES = [single(minor) for minor in range(4)]
PAIRS = [set_of(0, 1), set_of(2, 3)]
FOUR = set_of(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("published", "claimed", "problem"),
    [
        ([*SINGLES, *PAIRS, FOUR], [], ""),
        ([*SINGLES, *PAIRS], [], "are not published"),
        ([*SINGLES, PAIRS[0], FOUR], [], "are not published"),
        ([*SINGLES, *PAIRS, FOUR, set_of(1, 2)], [], "are neither linked nor all GPUs"),
        ([*SINGLES, *PAIRS, set_of(0, 1, 2, 3, size=2)], [], "is said to have 2 GPUs and has 4"),
        # One GPU is not published, so its pair is there only while a claim has it.
        ([*SINGLES[1:], PAIRS[1]], [], ""),
        ([*SINGLES[1:], *PAIRS], [], "are neither linked nor all GPUs"),
        ([*SINGLES[1:], *PAIRS], [{0, 1}], ""),
        # Of the GPUs that are left, no two are linked.
        ([SINGLES[0], SINGLES[2], set_of(0, 2)], [], ""),
    ],
)
def test_linked_gpus_are_published_as_sets(published, claimed, problem):
    uuids = [frozenset(LINKED_BOX.gpus[minor].uuid for minor in minors) for minors in claimed]
    problems = list(wrong_sets(published, uuids, LINKED_BOX))
    assert bool(problems) == bool(problem)
    assert all(problem in text for text in problems[-1:])


def test_pods_of_a_shared_claim_and_monitors_of_all_gpus_come_in_the_newest_worlds_only():
    kinds = {"create_pod_of_shared_claim"}
    former = [draw_small_world(LATER_SEEDS + number) for number in range(60)]
    newest = [draw_small_world(NEWEST_SEEDS + number) for number in range(60)]
    assert not any(action.kind in kinds or MONITOR in action.args for world in former for action in world.actions)
    claims = [world for world in newest if world.has_claims]
    assert any(action.kind in kinds for world in claims for action in world.actions)
    assert any(MONITOR in action.args for world in claims for action in world.actions)
    without_shares = [world for world in claims if "DRAConsumableCapacity" in world.gates_off]
    assert without_shares
    assert not any(MONITOR in action.args for world in without_shares for action in world.actions)
