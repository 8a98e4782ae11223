"""`--put-back all`: puts each fault back alone, plays seeds until one breaks a promise, and prints a table.

Only small worlds are played, see `swarm`: many of them fit into the time of a large one. The search ends by CPU time,
because in real time it would depend on what else the machine does.
"""

import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simworld.claim_scenario import draw_small_world
from simworld.play import Fork, Outcome
from simworld.put_back import FAULTS
from simworld.shrink import kind_of

HEAD = "| fault | found | seed | CPU seconds | turns | what the checker says |\n| --- | --- | --- | --- | --- | --- |"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one fault.

    Attributes:
        fault: its name.
        broken: the first promise that was broken; empty if none was.
        seed: with which it was, or the last one that was played.
        seconds: of CPU time that it took.
        turns: task switches of all seeds that were played.
    """

    fault: str
    broken: str
    seed: int
    seconds: float
    turns: int

    def __str__(self) -> str:
        """A row of the table."""
        said = kind_of(self.broken).replace("|", "/").replace("\n", " ") or "nothing"
        found = "yes" if self.broken else "no"
        words = self.fault.replace("_", " ")
        return f"| {words} | {found} | {self.seed} | {self.seconds:.0f} | {self.turns} | {said} |"


@dataclass(frozen=True, slots=True)
class Search:
    """How each fault is looked for.

    Attributes:
        first: the first seed.
        seconds: of CPU time, of all processes together, until no more seeds begin for a fault.
        jobs: processes at a time.
        root: folder for their files.
    """

    first: int
    seconds: float
    jobs: int
    root: Path

    def find(self, name: str) -> Finding:
        """Look for a fault from a cold start."""
        began = _cpu_s()
        until = began + self.seconds
        turns = 0
        seed = self.first
        for outcome in self._outcomes(name, until):
            turns += outcome.turns
            seed = outcome.seed
            if outcome.error:
                # No promise has found the fault: for example, the decision that it takes away has another place now.
                print(f"{name}, seed {seed}: {outcome.error}", file=sys.stderr, flush=True)
                continue
            # A seed that fails without the fault says nothing about it.
            if outcome.broken and not self._fails_anyway(seed):
                return Finding(name, outcome.broken[0], seed, _cpu_s() - began, turns)
        return Finding(name, "", seed, _cpu_s() - began, turns)

    def _fails_anyway(self, seed: int) -> bool:
        return bool(Fork(draw_small_world(seed), self.root).outcome().broken)

    def _outcomes(self, name: str, until: float) -> Iterator[Outcome]:
        """Outcomes of the seeds from the first one on, in order."""
        running: list[Fork] = []
        seed = self.first
        try:
            while True:
                while len(running) < self.jobs and _cpu_s() < until:
                    running.append(Fork(draw_small_world(seed), self.root, FAULTS[name]))
                    seed += 1
                if not running:
                    return
                yield running.pop(0).outcome()
        finally:
            for fork in running:
                fork.outcome()


def _cpu_s() -> float:
    """CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_table(wanted: str, search: Search) -> int:
    """Look for faults, `all` or names with commas between them; returns 1 if one was not found."""
    names = list(FAULTS) if wanted == "all" else wanted.split(",")
    print(HEAD, flush=True)
    missed = 0
    for name in names:
        finding = search.find(name)
        print(finding, flush=True)
        missed += not finding.broken
    return 1 if missed else 0
