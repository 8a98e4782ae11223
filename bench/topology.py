"""The best set of GPUs: how long a choice takes, whether it is the best, what bandwidth a day of choices hands out."""

import random
from collections.abc import Sequence
from operator import attrgetter

from bench import choosing, day
from bench.result import Results, Say
from bench.topologies import BOXES, box_topology, random_square, sixteens
from gpuagent.domain.bestset import Goal
from gpuagent.domain.links import Topology

WORST_US = 1000.0
SPLIT = ("all alike (DGX-2)", "PCIe, four to a switch", "eight bridged pairs")
"""Where the goal `partition` is measured on 16 GPUs: those that can be told apart are too many to be split."""
EIGHTS = 40
SAMPLES = 2000
DAYS, DAYS_OF_16 = 2000, 20
"""The published policies try every split of the free GPUs, which takes long for 16."""


def measure(results: Results, say: Say, *, quick: bool) -> None:
    """Every question to 16 GPUs that there is; some of them against trying every set; days on every box."""
    _choices(results, say, quick=quick)
    samples = 50 if quick else SAMPLES
    say(f"choice: {samples} questions against trying every set")
    compared = choosing.compare(samples)
    results.row("best set, against trying every set", f"{compared} of {compared} the same", "all the same", holds=True)
    for name in BOXES:
        say(f"days on {name}")
        topology = box_topology(name)
        count = DAYS if len(topology.gpus) <= 8 else DAYS_OF_16
        _day(results, name, topology, day.days(topology, 10 if quick else count))


def _choices(results: Results, say: Say, *, quick: bool) -> None:
    for name, mbps in list(sixteens().items())[: 4 if quick else None]:
        for goal in Goal if name in SPLIT else (Goal.WEAKEST_LINK,):
            what = f"best of 16 GPUs, {name}, {goal}"
            say(what)
            sets, made = choosing.tables(mbps, goal)
            _latency(results, what, [choosing.timed(sets, choosing.questions(16, 2000 if quick else None))], [made])
    rng = random.Random(8)  # noqa: S311 (the same every time is the point)
    squares = [random_square(8, rng, range(1000, 150_000)) for _ in range(4 if quick else EIGHTS)]
    what = f"best of 8 GPUs, {len(squares)} times all different, {Goal.PARTITION}"
    say(what)
    known = [choosing.tables(mbps, Goal.PARTITION) for mbps in squares]
    answers = [choosing.timed(sets, choosing.questions(8)) for sets, _ in known]
    _latency(results, what, answers, [made for _, made in known])


def _latency(results: Results, name: str, answers: Sequence[choosing.Timed], tables: Sequence[choosing.Tables]) -> None:
    us = [took for answer in answers for took in answer.us]
    got = results.keep(f"{name}: us", us)
    again = sum(answer.again for answer in answers)
    for what in ("seconds", "mib", "peak_mib"):
        results.keep(f"{name}: tables {what}", list(map(attrgetter(what), tables)))
    results.keep(f"{name}: asked again", [again])
    above = sum(took >= WORST_US for took in us)
    results.keep(f"{name}: above the bar", [above])
    text = f"p50 {got['p50']:.0f}, p99 {got['p99']:.0f}, worst {got['max']:.0f} µs of {len(us)}"
    text += f" ({again} asked again, {above} above the bar)"
    worst = max(tables, key=attrgetter("seconds"))
    text += f"; tables {worst.seconds * 1000:.0f} ms, {worst.mib:.1f} MiB"
    results.row(name, text, f"worst < {WORST_US / 1000:.0f} ms", got["max"] < WORST_US)


def _day(results: Results, name: str, topology: Topology, days: day.Days) -> None:
    alike = len({link.gbps for row in topology.links for link in row if link}) == 1
    joined = any(link.nvlinks for row in topology.links for link in row if link)
    results.keep(f"day, {name}: busy", [days.busy])
    results.keep(f"day, {name}: sets", [days.sets])
    for what in ("weakest", "total"):
        measure = attrgetter(what)
        means = {}
        for policy, handed in days.handed.items():
            results.keep(f"day, {name}: {what} GB/s, {policy}", list(map(measure, handed)))
            means[policy] = days.mean(policy, measure)
        leads = {ours: days.lead(ours, measure) for ours in day.OURS}
        for ours, lead in leads.items():
            results.keep(f"day, {name}: {what} GB/s, {ours} over {lead.over}", [lead.mean])
            results.keep(f"day, {name}: {what} GB/s, half interval, {ours} over {lead.over}", [lead.half])
        lead = leads["ours"]
        said = ", ".join(f"{policy} {mean:.2f}" for policy, mean in means.items())
        text = f"{said} GB/s; {lead.mean:+.3f} ± {lead.half:.3f}, {lead.verdict}"
        bar = "equal" if alike else "ahead" if joined else ""
        results.row(
            f"{name}: {'weakest link' if what == 'weakest' else 'sum'}",
            text,
            bar,
            lead.verdict.startswith(bar) if bar else None,
        )
