"""The best set of GPUs: how long a choice takes, whether it is the best, the bandwidth that a day of choices yields."""

from operator import attrgetter

from bench.placement import choosing, day
from bench.placement.topologies import BOXES, box_topology, sixteens
from bench.result import Results, Say
from gpuagent.domain.gpus.topology import Topology

WORST_US = 1000.0
SAMPLES = 2000
DAYS, DAYS_OF_16 = 2000, 20
"""The published policies try every split of the free GPUs, which takes long for 16."""


def measure(results: Results, say: Say, *, quick: bool) -> None:
    """Every question to 16 GPUs that there is; some of them against trying every set; days on every box."""
    _choices(results, say, quick=quick)
    samples = 50 if quick else SAMPLES
    say(f"choice: {samples} questions against trying every set")
    compared = choosing.compare(samples)
    results.row("best set, against trying every set", f"{compared} of {compared} the same", "all equal", holds=True)
    for name in BOXES:
        say(f"days on {name}")
        topology = box_topology(name)
        count = DAYS if len(topology.gpus) <= 8 else DAYS_OF_16
        _day(results, name, topology, day.days(topology, 10 if quick else count))


def _choices(results: Results, say: Say, *, quick: bool) -> None:
    for name, mbps in list(sixteens().items())[: 4 if quick else None]:
        what = f"best of 16 GPUs, {name}"
        say(what)
        sets, made = choosing.tables(mbps)
        _latency(results, what, choosing.timed(sets, choosing.questions(16, 2000 if quick else None)), made)


def _latency(results: Results, name: str, asked: choosing.Timed, tables: choosing.Tables) -> None:
    got = results.keep(f"{name}: us", asked.us)
    for what in ("seconds", "mib", "peak_mib"):
        results.keep(f"{name}: tables {what}", [getattr(tables, what)])
    results.keep(f"{name}: asked again", [asked.again])
    above = sum(took >= WORST_US for took in asked.us)
    results.keep(f"{name}: above the bar", [above])
    text = f"p50 {got['p50']:.0f}, p99 {got['p99']:.0f}, worst {got['max']:.0f} µs of {len(asked.us)}"
    text += f" ({asked.again} asked again, {above} above the bar)"
    text += f"; tables {tables.seconds * 1000:.0f} ms, {tables.mib:.1f} MiB"
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
        lead = days.lead(measure)
        results.keep(f"day, {name}: {what} GB/s, {day.OURS} over {lead.over}", [lead.mean])
        results.keep(f"day, {name}: {what} GB/s, half interval, {day.OURS} over {lead.over}", [lead.half])
        said = ", ".join(f"{policy} {mean:.2f}" for policy, mean in means.items())
        text = f"{said} GB/s; {lead.mean:+.3f} ± {lead.half:.3f}, {lead.verdict}"
        bar = "equal" if alike else "ahead" if joined else ""
        results.row(
            f"{name}: {'weakest link' if what == 'weakest' else 'sum'}",
            text,
            bar,
            lead.verdict.startswith(bar) if bar else None,
        )
