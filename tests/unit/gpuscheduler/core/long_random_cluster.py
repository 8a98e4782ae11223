"""Many lives of the random cluster, with a count of their steps: `make random-cluster`."""

import argparse
import itertools
import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.unit.gpuscheduler.core.test_random_cluster import STEPS, RandomCluster

LIVES = 250
"""With one seed. Hypothesis keeps what it needs to make a failing life shorter, so memory grows with them."""


class CountedCluster(RandomCluster):
    lives = 0
    steps = 0

    def __init__(self):
        super().__init__()
        CountedCluster.lives += 1

    @invariant()
    def count(self):
        """Hypothesis ends some lives early, so the steps are counted."""
        CountedCluster.steps += 1


def run(first_seed, steps):
    """Run seeds one after another until they have had so many steps. The first fault ends it, as an exception."""
    limits = settings(
        max_examples=LIVES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    began = time.monotonic()
    for number in itertools.count(first_seed):
        print(f"seed {number}", flush=True)
        run_state_machine_as_test(seed(number)(CountedCluster), settings=limits)
        seconds = time.monotonic() - began
        print(f"  {CountedCluster.lives} lives, {CountedCluster.steps} steps, {seconds:.0f} s", flush=True)
        if CountedCluster.steps >= steps:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200_000, help="steps in all (default: %(default)s)")
    given = parser.parse_args()
    run(given.seed, given.steps)
    print("No fault.")


if __name__ == "__main__":
    main()
