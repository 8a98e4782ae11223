"""What each command takes. Every flag that a command would ignore is refused."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuagent.system.likeness import did_you_mean
from inspectcgpu.flags import AGENTS, HEALTH_COLUMNS, NODE_COLUMNS, OUTPUTS, SHOWN, STATUS, WASTE_COLUMNS
from inspectcgpu.usage_error import UsageError

NODES = "nodes"
"""The command without a flag of its own."""
NAMES_OF_NODES = "the names of nodes"
_OF_THE_ANSWER = ("table", "json", "yaml")
"""Output formats of commands that do not report nodes."""
_OF_AGENTS = ("--agent-namespace", "--agent-port", "--agent-timeout")
_OF_NODES = (NAMES_OF_NODES, "--selector", "--namespace", "--all-namespaces", *_OF_AGENTS, "--no-agents")
_WATCHED = ("--watch", "--interval")


@dataclass(frozen=True, slots=True)
class Takes:
    """What one command takes beside the flags of the cluster.

    Attributes:
        about: what the command shows, as the first part of a refusal.
        flags: by their long names.
        outputs: values of `--output`.
        columns: values of `--sort-by`; the first is the name of what is listed.
    """

    about: str
    flags: tuple[str, ...]
    outputs: tuple[str, ...]
    columns: tuple[str, ...] = ()


COMMANDS: Mapping[str, Takes] = {
    NODES: Takes(
        "this shows nodes and asks their agents",
        (*_OF_NODES, *_WATCHED, "--sort-by", "--no-headers"),
        OUTPUTS,
        NODE_COLUMNS,
    ),
    "--details": Takes(
        "--details shows the pods of each node",
        ("--details", *_OF_NODES, *_WATCHED, "--sort-by"),
        ("table", "wide", "json", "yaml"),
        NODE_COLUMNS,
    ),
    "--health": Takes(
        "--health shows what is wrong on nodes",
        ("--health", *_OF_NODES, *_WATCHED, "--sort-by", "--no-headers"),
        ("table", "wide", "name", "json", "yaml"),
        HEALTH_COLUMNS,
    ),
    "--waste": Takes(
        "--waste shows the pods and namespaces that agents know, once",
        (
            "--waste",
            NAMES_OF_NODES,
            "--selector",
            "--namespace",
            "--all-namespaces",
            "--sort-by",
            "--no-headers",
            *_OF_AGENTS,
        ),
        _OF_THE_ANSWER,
        WASTE_COLUMNS,
    ),
    "--defragment": Takes(
        "--defragment shows what gpuscheduler would move in the whole cluster, once",
        ("--defragment", "--agent-namespace", "--scheduler-port"),
        _OF_THE_ANSWER,
    ),
    "--why": Takes(
        "--why is about one pod or workload, in the namespace of -n",
        ("--why", "--namespace"),
        _OF_THE_ANSWER,
    ),
    STATUS: Takes(
        "status NODE shows what the agent of one node does, once",
        (NAMES_OF_NODES, "--agent-namespace", "--agent-port"),
        _OF_THE_ANSWER,
    ),
}
"""Each command, and what it takes."""

_IGNORED_BY_OUTPUT: Mapping[str, tuple[str, ...]] = {
    "name": ("--namespace", "--all-namespaces"),
    "json": ("--no-headers",),
    "yaml": ("--no-headers",),
}
"""Flags about what these formats do not have: lists of pods, and headings."""
_NAMES = ("name", ".metadata.name", "metadata.name", "{.metadata.name}")
"""Of kubectl's values of `--sort-by`, the expressions that mean a column here."""


def command_of(options: argparse.Namespace) -> str:
    """The command that the flags ask for: a key of COMMANDS."""
    if options.nodes[:1] == [STATUS]:
        return STATUS
    if options.why is not None:
        return "--why"
    for command in ("--defragment", "--waste", "--health", "--details"):
        if _value(options, command):
            return command
    return NODES


def check(options: argparse.Namespace) -> None:
    """Raise UsageError if flags contradict each other, or if one would be ignored."""
    for problem in _problems(options):
        raise UsageError(problem)


def column_of(options: argparse.Namespace) -> str:
    """The column of `--sort-by`, one of the command's; empty without. Raises UsageError if the command has no such."""
    written = options.sort_by
    if not written:
        return ""
    columns = COMMANDS[command_of(options)].columns
    if written in _NAMES:
        return columns[0]
    column = written.lower()
    if column in columns:
        return str(column)
    known = ", ".join(columns)
    if "." in written:
        sentence = f"--sort-by {written} is a JSONPath expression, and this sorts by a column: {known}"
        raise UsageError(f"{sentence}; kubectl get nodes takes such an expression")
    raise UsageError(f"--sort-by {written} is not a column here: {known}{did_you_mean(column, columns)}")


def _problems(options: argparse.Namespace) -> Iterator[str]:
    command = command_of(options)
    takes = COMMANDS[command]
    given = _given(options)
    if command == STATUS and len(options.nodes) != len((STATUS, "NODE")):
        yield "status is about one node: kubectl inspect cgpu status NODE"
    for flag in given:
        if flag not in takes.flags:
            yield f"{takes.about}: leave out {flag}"
    if options.output not in takes.outputs:
        yield f"{takes.about}: leave out -o {options.output}, or use -o json"
    yield from _contradictions(options, given)


def _contradictions(options: argparse.Namespace, given: tuple[str, ...]) -> Iterator[str]:
    """Flags that the command takes, but not together."""
    for flag in _IGNORED_BY_OUTPUT.get(options.output, ()):
        if flag in given:
            yield f"-o {options.output} has nothing that {flag} could change: leave out {flag}"
    if options.nodes and options.selector:
        yield "nodes are named, and selected with -l: do one of both"
    if "--interval" in given and not options.watch:
        yield "--interval is the time between two reports of --watch: add --watch, or leave out --interval"
    if options.no_agents:
        for flag in _OF_AGENTS:
            if flag in given:
                yield f"--no-agents asks no agent: leave out {flag}"


def _given(options: argparse.Namespace) -> tuple[str, ...]:
    """The long names of the flags that say something other than their default, without the output format."""
    given = [NAMES_OF_NODES] if options.nodes else []
    for flag in (*SHOWN, *AGENTS):
        name = flag.names[-1]
        value = _value(options, name)
        is_default = value in (None, False, "", flag.how.get("default"))
        if name != "--output" and not is_default:
            given.append(name)
    return tuple(given)


def _value(options: argparse.Namespace, flag: str) -> object:
    """The value of a flag by its long name."""
    return getattr(options, flag.removeprefix("--").replace("-", "_"))
