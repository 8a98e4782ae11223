"""`make simulate`: play scenarios of new seeds until the time is over, or one seed again.

Each seed runs in a process of its own, forked after the imports. The first seed that breaks a promise is shrunk, and
told as a story with the command that plays it again.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from simworld.scenario import Scenario

# Kept before the machine is replaced: its clocks begin at the same moment in each run.
_clock = time.monotonic
_began_at = time.time()


def main() -> int:
    """Play, and return the exit status: 1 if a promise was broken."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts is part of a run, so it must be the same in each.
        command = [sys.executable, "-m", "simworld", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 (the same program)
    parser = _parser()
    given = parser.parse_args()
    if given.keep and given.seed is None:
        parser.error("--keep keeps the scenario of one seed: give --seed, too")
    if given.scenario is not None and not given.scenario.is_file():
        parser.error(f"--scenario {given.scenario}: there is no such file")
    from simworld.runtime.replace import replace_machine  # noqa: PLC0415 (before the product is imported)

    replace_machine()
    from simworld import put_back  # noqa: PLC0415
    from simworld.kinds import QUICK  # noqa: PLC0415
    from simworld.play import play_one  # noqa: PLC0415
    from simworld.put_back_table import Search, print_table  # noqa: PLC0415
    from simworld.stored import read_stored  # noqa: PLC0415

    if given.put_back == "list":
        print("\n".join(put_back.FAULTS))
        return 0
    unknown = _unknown_faults(given.put_back, put_back.FAULTS)
    if unknown:
        parser.error(f"--put-back {unknown}: there is no such fault, see --put-back list")
    are_several = given.put_back == "all" or "," in (given.put_back or "")
    is_search = given.seeds is None and given.seed is None and given.scenario is None
    is_table = are_several or (bool(given.put_back) and is_search)
    if given.put_back and not is_table:
        put_back.FAULTS[given.put_back]()
    root = Path(tempfile.mkdtemp(prefix="simworld-", dir="/dev/shm"))
    try:
        if given.scenario is not None:
            return 1 if play_one(read_stored(given.scenario).scenario, root, 0) else 0
        if given.seed is not None:
            return _play_seed(given, root)
        first = int(_began_at) if given.first is None else given.first
        if is_table:
            cpu_s = given.minutes * 60 * given.jobs
            kind = _kind(given)
            kinds = {kind: QUICK[kind]} if kind else QUICK
            return print_table(given.put_back, Search(first, cpu_s, given.jobs, root, kinds))
        return _play_seeds(given, first, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _at_least_one(text: str) -> int:
    """A number of processes. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _unknown_faults(names: str | None, known: "Container[str]") -> str:
    """The names that are not those of faults, with commas between them."""
    if not names or names == "all":
        return ""
    return ",".join(name for name in names.split(",") if name not in known)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simworld", description=__doc__)
    # A number of seeds has no time: a busy machine would pass with a few of them.
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--minutes", type=float, default=10.0, help="begin seeds for so long")
    extent.add_argument("--seeds", type=int, default=None, help="play so many seeds, however long that takes")
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default, one from the clock")
    parser.add_argument(
        "--small", action="store_true", help="play the small worlds of the seeds, in which faults are looked for"
    )
    parser.add_argument(
        "--staged", action="store_true", help="play the staged worlds of the seeds, each with one rare circumstance"
    )
    parser.add_argument(
        "--admissions", action="store_true", help="play the staged worlds of admissions: one rare circumstance each"
    )
    parser.add_argument("--gangs", action="store_true", help="play the staged worlds of jobs whose pods start together")
    parser.add_argument("--tries", type=int, default=60, help="how often a failing seed is played to shorten it")
    parser.add_argument(
        "--put-back",
        metavar="FAULT",
        help="look for a fault that is put back, for several with commas between them, or for `all` of them: in small "
        "worlds and all kinds of staged ones, or in those of the kind that is given, with --minutes of CPU time of "
        "each process for each fault; `list` them; with --seeds, --seed or --scenario, play these with the fault",
    )
    parser.add_argument("--seed", type=int, default=None, help="play this seed only, and print its story")
    parser.add_argument("--scenario", metavar="FILE", type=Path, help="play this kept scenario only")
    parser.add_argument("--keep", metavar="NAME", help="with --seed: keep the shortened scenario for the tests")
    parser.add_argument("--jobs", type=_at_least_one, default=os.cpu_count() or 1, help="processes at a time")
    return parser


def _play_seeds(given: argparse.Namespace, first: int, root: Path) -> int:
    """Play seeds from the first one on. The first that breaks a promise is told, unless a fault was put back."""
    from simworld.play import play_many, play_one  # noqa: PLC0415 (after the machine is replaced)

    draw = _drawing(given)
    seconds = given.minutes * 60 if given.seeds is None else None
    until_found = bool(given.put_back)
    totals = play_many(first, seconds, given.seeds, given.jobs, root, _clock, until_found=until_found, draw=draw)
    if not totals.seeds:
        print("No world was played. Give --seeds or --minutes more than 0.")
        return 1
    if not totals.failed:
        return 0
    if not given.put_back:
        seed = totals.failed[0]
        play_one(draw(seed), root, given.tries)
        kind = _kind(given)
        option = f" --{kind}" if kind else ""
        again = f".venv/bin/python -m simworld --seed {seed}{option}"
        print(f"again: {again}      (--keep NAME: among the tests from now on)")
    return 1


def _drawing(given: argparse.Namespace) -> "Callable[[int], Scenario]":
    """What draws the worlds of the wanted kind."""
    from simworld.kinds import LARGE, QUICK  # noqa: PLC0415 (after the machine is replaced)

    kind = _kind(given)
    return QUICK[kind] if kind else LARGE


def _kind(given: argparse.Namespace) -> str:
    """The kind of worlds that is wanted, which is the name of its option; empty for large worlds."""
    kinds = [kind for kind in ("gangs", "admissions", "staged", "small") if getattr(given, kind)]
    return kinds[0] if kinds else ""


def _play_seed(given: argparse.Namespace, root: Path) -> int:
    """Play one seed, and keep the scenario if it breaks a promise and has a name."""
    from simworld.play import play_one  # noqa: PLC0415 (after the machine is replaced)
    from simworld.stored import FOLDER, keep  # noqa: PLC0415

    broken = play_one(_drawing(given)(given.seed), root, given.tries)
    if given.keep and not broken:
        print("no promise is broken, so nothing is kept")
    if broken and given.keep:
        path = FOLDER / f"{given.keep}.json"
        keep(replace(broken, fault=given.put_back or ""), path)
        print(f"kept in {path}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
