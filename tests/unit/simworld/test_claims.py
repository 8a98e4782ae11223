"""Worlds with ResourceClaims."""

import subprocess
import sys

import pytest

from simworld.claim_scenario import NOT_BESIDE_CLAIMS, draw_world, with_claims
from simworld.scenario import draw

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
