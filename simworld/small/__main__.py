"""Follow every order of events of a small cluster to a depth, and tell the shortest way to a broken promise.

For example, `python -m simworld.small --depth 12 --begins waiting`.
"""

import argparse
import os
import sys
from dataclasses import replace

from simworld.small.faults import FAULTS
from simworld.small.model import Scope
from simworld.small.search import Result, search


def main() -> int:
    """Search, and return the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m simworld.small", description=__doc__)
    parser.add_argument("--depth", type=_positive, default=9, help="most events one after another")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--nodes", type=_positive, help="how many nodes")
    parser.add_argument("--gpus", type=_positive, help="how many GPUs each node has")
    parser.add_argument("--units", type=_positive, help="units of each GPU")
    parser.add_argument("--pods", type=_all_positive, help="units that each pod asks for, such as 3,3,3")
    parser.add_argument("--crashes", type=int, help="how often a scheduler or an agent crashes")
    parser.add_argument("--ends", type=int, help="how many pods end or are deleted")
    parser.add_argument("--slow", type=int, help="how often the API server answers an agent too late")
    parser.add_argument("--begins", choices=("empty", "waiting", "running"), help="what is there at the beginning")
    parser.add_argument("--put-back", metavar="FAULT", help="put a fault back first, or `list` them")
    given = parser.parse_args()
    if given.put_back == "list":
        print("\n".join(FAULTS))
        return 0
    if given.put_back and given.put_back not in FAULTS:
        parser.error(f"--put-back {given.put_back}: there is no such fault, see --put-back list")
    scope = Scope()
    if given.put_back:
        fault = FAULTS[given.put_back]
        fault.put_back()
        scope = fault.scope
    result = search(_scope(given, scope), given.depth, given.seconds, _tell)
    _tell(result)
    if not result.broken:
        print("no promise is broken" + (", and no other world can be reached" if result.complete else ""))
        return 0
    print(f"\nBROKEN after {len(result.story)} events:")
    for number, what in enumerate(result.story, 1):
        print(f"{number:4}  {what}")
    print("\n".join(result.broken))
    return 1


def _positive(text: str) -> int:
    """A whole number of at least 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text or 'nothing'} is not a whole number of at least 1")
    return int(text)


def _all_positive(text: str) -> tuple[int, ...]:
    """Such numbers with commas between them. Raises ArgumentTypeError."""
    return tuple(map(_positive, text.split(",")))


def _scope(given: argparse.Namespace, scope: Scope) -> Scope:
    changes = {
        name: value
        for name in ("nodes", "gpus", "units", "pods", "crashes", "ends", "slow", "begins")
        if (value := getattr(given, name)) is not None
    }
    return replace(scope, **changes)


def _tell(result: Result) -> None:
    print(
        f"depth {result.depth}: {result.states:,} states, {result.transitions:,} transitions, of which"
        f" {result.merged:,} led to a state that was there; {result.named - result.states:,} states differ from"
        f" another in names only; {result.quiet:,} quiet; {result.seconds:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts decides in which order states are found.
        command = [sys.executable, "-m", "simworld.small", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 (the same program)
    sys.exit(main())
