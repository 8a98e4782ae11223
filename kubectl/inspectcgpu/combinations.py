"""Flags that do not go together."""

import argparse
from collections.abc import Iterator, Mapping

from inspectcgpu.flags import STATUS
from inspectcgpu.usage_error import UsageError


def check(options: argparse.Namespace) -> None:
    """Raise UsageError if flags contradict each other, or if one would be ignored."""
    for problem in _problems(options):
        raise UsageError(problem)


def _problems(options: argparse.Namespace) -> Iterator[str]:
    if options.nodes[:1] == [STATUS]:
        yield from _problems_of_status(options)
    if options.nodes and options.selector:
        yield "nodes are named, and selected with -l: do one of both"
    if options.why and options.all_namespaces:
        yield "--why is about one pod: give its namespace with -n instead of -A"
    if options.why and (options.nodes or options.selector):
        yield "--why is about one pod: leave out nodes and -l"
    if options.health and options.sort_by:
        yield "--health has its own order, problems first: leave out --sort-by"
    if options.details and options.no_headers:
        yield "--no-headers is for tables with a line for each node: leave out --details"
    is_one_answer = bool(options.why or options.defragment or options.waste)
    if is_one_answer and options.output == "name":
        yield "-o name is for nodes: use -o json"
    if is_one_answer and options.watch:
        yield "--why, --defragment and --waste answer once: leave out --watch"
    if options.waste:
        yield from _problems_of_waste(options)


def _problems_of_waste(options: argparse.Namespace) -> Iterator[str]:
    if options.no_agents:
        yield "--waste is what agents know: leave out --no-agents"
    others = {
        "--details": options.details,
        "--health": options.health,
        "--defragment": options.defragment,
        "--why": options.why,
        "--sort-by": options.sort_by,
    }
    yield from _left_out(others, "--waste shows pods and namespaces")


def _problems_of_status(options: argparse.Namespace) -> Iterator[str]:
    if len(options.nodes) != len((STATUS, "NODE")):
        yield "status is about one node: kubectl inspect cgpu status NODE"
    others = {
        "--details": options.details,
        "--health": options.health,
        "--defragment": options.defragment,
        "--waste": options.waste,
        "--why": options.why,
        "--watch": options.watch,
        "--no-agents": options.no_agents,
        "-l": options.selector,
        "-n": options.namespace,
        "--sort-by": options.sort_by,
        "--no-headers": options.no_headers,
    }
    yield from _left_out(others, "status NODE shows what one agent does")
    if options.output == "name":
        yield "-o name is for nodes: use -o json"


def _left_out(others: Mapping[str, object], because: str) -> Iterator[str]:
    """A problem for each of these flags that is given."""
    for flag, is_given in others.items():
        if is_given:
            yield f"{because}: leave out {flag}"
