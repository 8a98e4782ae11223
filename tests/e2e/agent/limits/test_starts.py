"""Bursts of pods while the agent is killed at random: no container runs without the limit of its pod."""

import random
import signal
import threading
import time
from typing import Self

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.helper import Helper
from tests.e2e.agent.limits.starting_pods import LIMITED, StartingPods
from tests.e2e.amounts import SEED, count, only_long

STARTS = count(usual=30, long=500)
"""Of containers, on each of the driver's two ways of accounting."""
HELPER_KILLS = 20
_WAVE = 6
_USED_ADDRESSES = 84
"""Percent of new control groups at the address of a removed one, as measured on Linux 7.2. Backend misc takes the limit
of the one for that of the other."""


@pytest.fixture
def rng(helper: Helper) -> random.Random:
    return random.Random(f"{SEED} {helper.backend}")


@pytest.fixture
def pods(limited_node: Node, helper: Helper, rng: random.Random) -> StartingPods:
    helper.load_driver(_USED_ADDRESSES, SEED)
    return StartingPods(limited_node, helper, rng)


class Killer:
    """Kills and starts the agent at random moments, in a thread, while it is entered."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self._node = node
        # Of its own, because another thread uses the other one.
        self._rng = random.Random(rng.random())
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

    @property
    def is_at_work(self) -> bool:
        """Whether it goes on: its thread ends with the first kill or start that fails."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(self._rng.uniform(0.2, 6)):
            self._node.agent.kill()
            self.kills += 1
            self._ending.wait(self._rng.choice([0, 0.5]))
            self._node.agent.start()
            self._node.agent.wait_ready()


@pytest.mark.timeout(3600)
def test_no_container_runs_without_the_limit_of_its_pod_while_the_agent_is_killed(
    limited_node: Node, pods: StartingPods, rng: random.Random
) -> None:
    with Killer(limited_node, rng) as killer:
        # On a fast machine, all of them may have started before the first kill.
        while (pods.starts[LIMITED] < STARTS or not killer.kills) and not pods.unlimited:
            assert killer.is_at_work
            pods.collect(pods.create(_WAVE))
    print(f"\n{dict(pods.starts)}, {killer.kills} kills of the agent, {pods.refused} pods refused meanwhile")
    assert not pods.unlimited


@only_long
@pytest.mark.timeout(3600)
def test_pods_that_come_while_the_helper_is_away_wait_for_it(
    limited_node: Node, helper: Helper, pods: StartingPods, rng: random.Random
) -> None:
    """The simulated driver ends with it, and with that all limits, as when a real one is loaded anew."""
    for _ in range(HELPER_KILLS):
        helper.end(signal.SIGKILL)
        names = pods.create(_WAVE)
        time.sleep(rng.uniform(0, 3))
        helper.start()
        pods.collect(names)
    print(f"\n{dict(pods.starts)}, {HELPER_KILLS} kills of the helper, {pods.refused} pods refused meanwhile")
    assert not pods.unlimited
    assert pods.starts[LIMITED]
