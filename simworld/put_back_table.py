"""`--put-back all`: puts each fault back alone, plays seeds until one breaks a promise, and prints a table.

No large worlds are played: many others fit into the time of one. Each seed has a world of each of these `kinds`.
The search ends by CPU time, because in real time it would depend on what else the machine does.
"""

import itertools
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simworld.kinds import QUICK, Draw
from simworld.play import Fork, Outcome
from simworld.put_back import FAULTS, SYMPTOMS
from simworld.scenario import Scenario
from simworld.shrink import kind_of

HEAD = "| fault | found | world | CPU seconds | turns | what the checker says |\n| --- | --- | --- | --- | --- | --- |"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one fault.

    Attributes:
        fault: its name.
        broken: the promise with which it was found; empty if it was not.
        world: in which it was, or the last one that was played.
        seconds: of CPU time that it took.
        turns: task switches of all seeds that were played.
    """

    fault: str
    broken: str
    world: str
    seconds: float
    turns: int

    def __str__(self) -> str:
        """A row of the table."""
        said = kind_of(self.broken).replace("|", "/").replace("\n", " ") or "nothing"
        found = "yes" if self.broken else "no"
        words = self.fault.replace("_", " ")
        cells = (words, found, self.world, f"{self.seconds:.0f}", str(self.turns), said)
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Search:
    """How each fault is looked for.

    Attributes:
        first: the first seed.
        seconds: of CPU time, of all processes together, until no more seeds begin for a fault.
        jobs: processes at a time.
        root: folder for their files.
        kinds: what draws the worlds of each seed, by its name.
    """

    first: int
    seconds: float
    jobs: int
    root: Path
    kinds: Mapping[str, Draw] = field(default_factory=lambda: QUICK)

    def find(self, name: str) -> Finding:
        """Look for a fault from a cold start."""
        began = _cpu_s()
        until = began + self.seconds
        turns = 0
        world = ""
        for world, fork, outcome in self._outcomes(name, until):
            turns += outcome.turns
            if outcome.error:
                # No promise has found the fault: for example, the decision that it takes away has another place now.
                print(f"{name}, {world}: {outcome.error}", file=sys.stderr, flush=True)
                continue
            # A world that fails without the fault says nothing about it.
            broken = _shown_by(name, outcome)
            if broken and not self._fails_anyway(fork.scenario):
                return Finding(name, broken, world, _cpu_s() - began, turns)
        return Finding(name, "", world, _cpu_s() - began, turns)

    def _worlds(self) -> Iterator[tuple[str, Scenario]]:
        """Each world with its name: its kind and its seed."""
        for seed in itertools.count(self.first):
            for kind, draw in self.kinds.items():
                yield f"{kind} {seed}", draw(seed)

    def _fails_anyway(self, scenario: Scenario) -> bool:
        return bool(Fork(scenario, self.root).outcome().broken)

    def _outcomes(self, name: str, until: float) -> Iterator[tuple[str, Fork, Outcome]]:
        """Worlds of the seeds from the first one on by their names, in order, with what became of them."""
        running: list[tuple[str, Fork]] = []
        worlds = self._worlds()
        try:
            while True:
                while len(running) < self.jobs and _cpu_s() < until:
                    world, scenario = next(worlds)
                    running.append((world, Fork(scenario, self.root, FAULTS[name], SYMPTOMS.get(name, ""))))
                if not running:
                    return
                world, fork = running.pop(0)
                yield world, fork, fork.outcome()
        finally:
            for _, fork in running:
                fork.outcome()


def _shown_by(fault: str, outcome: Outcome) -> str:
    """The first broken promise that shows a fault; empty if none does."""
    words = SYMPTOMS.get(fault, "")
    showing = (broken for broken in outcome.broken if words in broken)
    return next(showing, "")


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
