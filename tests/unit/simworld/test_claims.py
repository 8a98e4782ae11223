"""Worlds with ResourceClaims."""

import subprocess
import sys

import pytest

from simworld.claim_grants import expected_variables, gpu_uses, is_impossible
from simworld.claim_scenario import NOT_BESIDE_CLAIMS, draw_small_world, draw_world, with_claims
from simworld.draw_claims import with_more_claims
from simworld.parts.claim_scheduler import Part
from simworld.parts.isolation import CORES_LIMIT, MEMORY_LIMIT
from simworld.scenario import LATER_SEEDS, draw
from standin.boxes import equal_gpus

FIRST, SECOND = equal_gpus("node", 2, 80).gpus

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
