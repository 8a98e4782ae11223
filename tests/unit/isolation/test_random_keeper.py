"""Random lives of pods, with the real keeper and the helper's guard: nobody gets more than its share, or less."""

import shutil
import tempfile
from pathlib import Path

import pytest

from gpuagent.isolation.limits.plan import Backend
from tests.unit.isolation.node_lives import Dangers, Life

LIVES = 40
QUIET = Dangers()
EVERY_DANGER = Dangers(sidecars=True, forged=True, failing=True, restarts=True, resets=True, unasked=True)


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize(
    "dangers",
    [
        QUIET,
        Dangers(failing=True),
        Dangers(restarts=True, resets=True),
        Dangers(unasked=True),
        Dangers(sidecars=True),
        Dangers(forged=True),
        Dangers(sidecars=True, forged=True),
        Dangers(resizes=True),
        Dangers(claims=True),
        Dangers(claims=True, sidecars=True, forged=True),
        Dangers(resizes=True, restarts=True, failing=True),
        EVERY_DANGER,
    ],
    ids=str,
)
def test_in_no_life_a_pod_has_more_than_its_share_or_less(watches, backend, dangers):
    for seed in range(LIVES):
        watches.every.clear()
        folder = Path(tempfile.mkdtemp())
        life = Life(folder, watches, backend, seed, dangers)
        try:
            life.live()
            life.check()
        except Exception:
            print(f"seed {seed}:", *life.story, sep="\n")
            raise
        finally:
            shutil.rmtree(folder)
