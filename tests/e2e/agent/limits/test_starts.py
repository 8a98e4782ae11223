"""Bursts of pods while the agent is killed at random: no container runs without the limit of its pod."""

import random
import threading
from typing import Self

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.attacks import GPU, share
from tests.e2e.agent.limits.helper import Helper
from tests.e2e.agent.limits.starting_pods import LIMITED, StartingPods
from tests.e2e.amounts import SEED, count

STARTS = count(usual=30, long=500)
"""Of containers, on each of the driver's two ways of accounting."""
_WAVE = 6


class Killer:
    """Kills and starts the agent at random moments, in a thread, while it is entered."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self._node = node
        self._rng = rng
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._node.agent.wait_ready()

    def _run(self) -> None:
        while not self._ending.wait(self._rng.uniform(0.2, 6)):
            self._node.agent.kill()
            self.kills += 1
            self._ending.wait(self._rng.choice([0, 0.5]))
            self._node.agent.start()
            self._node.agent.wait_ready()


@pytest.mark.timeout(3600)
def test_no_container_runs_without_the_limit_of_its_pod_while_the_agent_is_killed(
    limited_node: Node, helper: Helper
) -> None:
    rng = random.Random(f"{SEED} {helper.backend}")
    pods = StartingPods(limited_node, helper, rng)
    with Killer(limited_node, rng) as killer:
        while pods.starts[LIMITED] < STARTS and not pods.unlimited:
            pods.collect(pods.create(_WAVE))
    print(f"\n{helper.backend}: {dict(pods.starts)}, {killer.kills} kills, {pods.refused} pods refused meanwhile")
    assert not pods.unlimited
    assert killer.kills
    # What they asked for is there, and would have been given to a program without a limit.
    helper.ask(gpu=GPU, alloc=share(79))
