"""The flags of `kubectl inspect cgpu`: one table for each group, and the parser that they make."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuagent.system.command_line import CommandLine

PROG = "kubectl-inspect-cgpu"
AGENT_PORT = 9445
SCHEDULER_PORT = 9447
EXAMPLES = (
    "kubectl inspect cgpu              # every node with GPUs",
    "kubectl inspect cgpu -d gpu-1     # the pods of one node, and what they use",
    "kubectl inspect cgpu --health     # what is wrong on which node",
    "kubectl inspect cgpu -w           # every change, until Ctrl-C",
    "kubectl inspect cgpu --why chat   # why the pod chat waits, in one sentence",
    "kubectl inspect cgpu --defragment # what would move for pods that wait",
    "kubectl inspect cgpu -o json      # for a program",
)
_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        names: as they are written, the short one first.
        help: for the help screen.
        how: further arguments of `add_argument`.
    """

    names: tuple[str, ...]
    help: str
    how: dict[str, Any] = field(default_factory=dict)


def _switch(*names: str, help: str) -> Flag:  # noqa: A002 (as argparse calls it)
    """A flag without a value."""
    return Flag(names, help, {"action": "store_true"})


def _value(*names: str, metavar: str, help: str, **how: Any) -> Flag:  # noqa: A002, ANN401 (as argparse has them)
    """A flag with a value."""
    return Flag(names, help, {"metavar": metavar, **how})


def seconds(value: str) -> float:
    """A number of seconds from a command line."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= _DAY_S:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds above 0, a day at most")
    return number


SHOWN = (
    _switch("-d", "--details", help="show the pods on each node, and what they use"),
    _switch("--health", help="show what is wrong on which node, and nothing else"),
    _switch(
        "--defragment",
        help="show which pods gpuscheduler would move for those that wait, or moves; nothing is moved by this",
    ),
    _value("--why", metavar="POD", help="say in one sentence why this pod waits, and nothing else"),
    _value(
        "-n",
        "--namespace",
        metavar="NAME",
        help="with --why, namespace of the pod (default: the context's)",
    ),
    Flag(
        ("-o", "--output"),
        "output format (default: table)",
        {"choices": ["table", "wide", "json", "yaml"], "default": "table"},
    ),
    _switch("-w", "--watch", help="show every change until Ctrl-C"),
    _value(
        "--interval",
        metavar="SECONDS",
        help="with --watch, minimum seconds between refreshes (default: 2)",
        type=seconds,
        default=2.0,
    ),
)
"""What is shown, and how."""

CLUSTER = (
    _value("--kubeconfig", metavar="FILE", help="kubeconfig file (default: KUBECONFIG, then ~/.kube/config)"),
    _value("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)"),
)
"""Which cluster, as kubectl has them."""

AGENTS = (
    _value(
        "--agent-namespace",
        metavar="NAME",
        help="namespace of gpuagent and gpuscheduler (default: kube-system)",
        default="kube-system",
    ),
    _value(
        "--agent-port",
        metavar="PORT",
        help=f"HTTP port of the agents (default: {AGENT_PORT})",
        type=int,
        default=AGENT_PORT,
    ),
    _value(
        "--agent-timeout",
        metavar="SECONDS",
        help="seconds to wait for agents: without any response, and per 250 agents (default: 5)",
        type=seconds,
        default=5.0,
    ),
    _value(
        "--scheduler-port",
        metavar="PORT",
        help=f"with --defragment, HTTP port of gpuscheduler (default: {SCHEDULER_PORT})",
        type=int,
        default=SCHEDULER_PORT,
    ),
    _switch("--no-agents", help="use labels and annotations only, and query no agent"),
)
"""Where the pages of agents and scheduler are."""

GROUPS: dict[str, Sequence[Flag]] = {
    "what is shown": SHOWN,
    "the cluster, as for kubectl": CLUSTER,
    "pages of gpuagent and gpuscheduler": AGENTS,
}


def make_parser() -> CommandLine:
    """The parser of the whole command line."""
    parser = CommandLine(
        prog="kubectl inspect cgpu",
        usage="kubectl inspect cgpu [NODE ...] [flags]",
        description="Show which GPU of the cluster has what on it: memory, compute, whole GPUs, and the pods.",
        epilog="Exit codes: 0 success, 1 the cluster cannot be read, or there is no such node, 2 usage error, also in "
        "the kubeconfig. With --health, 1 also if a node has a problem that is not for information only.",
        examples=EXAMPLES,
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to show (default: every node with GPUs)")
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            group.add_argument(*flag.names, help=flag.help, **flag.how)
    parser.add_version(PROG)
    return parser
