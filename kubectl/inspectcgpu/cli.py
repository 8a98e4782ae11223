"""The command line: `kubectl inspect cgpu [NODE ...]`."""

import argparse
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiConfigError, KubeError
from gpuagent.kube.api.client import Client
from gpuagent.system.command_line import CommandLine
from gpuagent.system.output import has_colour, terminal_columns
from gpuagent.system.printable import printable
from inspectcgpu.fetch.agents import Asking
from inspectcgpu.fetch.choose_cluster import connect, own_namespace
from inspectcgpu.fetch.cluster import facts, read_nodes, read_other_sources, read_pods
from inspectcgpu.fetch.following import Following
from inspectcgpu.fetch.scheduler import PORT, read_moves
from inspectcgpu.read.gpu_node import ReadNode, read_node, read_node_with_gpus
from inspectcgpu.report import ClusterFacts, ClusterReport, build
from inspectcgpu.show.details import details
from inspectcgpu.show.documents import document, json_lines, json_text, yaml_lines
from inspectcgpu.show.health import has_problem, health
from inspectcgpu.show.moves import document as moves_document
from inspectcgpu.show.moves import moves
from inspectcgpu.show.narrow import fits, narrow
from inspectcgpu.show.screen import Screen
from inspectcgpu.show.summary import summary
from inspectcgpu.show.why import document as why_document
from inspectcgpu.show.why import why
from inspectcgpu.usage_error import UsageError

PROG = "kubectl-inspect-cgpu"
NO_GPUS = (
    "no GPU nodes: no node has aliyun.com/gpu-mem, aliyun.com/gpu-core.percentage or aliyun.com/gpu, or the label "
    "ack.node.gpu.schedule with another mode than default"
)
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
CTRL_C_S = 0.5
"""Longest sleep with --watch. If another thread receives the signal of Ctrl-C, a sleeping main thread does not wake."""

Lines = Callable[[ClusterReport], list[str]]


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; 0 success, 1 not read, no such node, or a problem with --health, 2 usage error."""
    options = _parser().parse_args(arguments)
    try:
        client = connect(options.kubeconfig, options.context, environ)
        if options.why:
            return _why(client, options, environ)
        if options.defragment:
            return _defragment(client, options, environ)
        return _watch(client, options, environ) if options.watch else _once(client, options, environ)
    except (UsageError, ApiConfigError) as err:
        _complain(str(err))
        return 2
    except KubeError as err:
        _complain(str(err))
        return 1
    except KeyboardInterrupt:
        if not options.watch:
            raise
        return 0


def _complain(text: str) -> None:
    """Print an error, made printable, as it may contain text of servers."""
    print(printable(f"{PROG}: {text}"), file=sys.stderr)


def _once(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    nodes = read_nodes(client, options.nodes, _read_shown(options))
    # At least one node is shown: in a cluster without GPU nodes, all pods wait for one.
    pods = read_pods(client, options.nodes) if nodes.gpu or not options.nodes else ()
    others = read_other_sources(client, nodes.gpu, pods, _asking(options), usage=options.details)
    report = build(facts(nodes.gpu, pods, others))
    if nodes.gpu or report.waiting or options.output in ("json", "yaml"):
        print("\n".join(_lines(options, colour=has_colour(sys.stdout, environ))(report)))
    elif not options.nodes:
        print(NO_GPUS, file=sys.stderr)
    for name in nodes.without:
        _complain(f"node {name} has no GPUs to share or to place")
    for name in nodes.missing:
        _complain(f"there is no node {name}")
    return 1 if nodes.missing or (options.health and any(map(has_problem, report.nodes))) else 0


def _why(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    # The scheduler's core, which knows why, takes time to load.
    from inspectcgpu.fetch.why import read_why  # noqa: PLC0415

    namespace = options.namespace or own_namespace(options.kubeconfig, options.context, environ)
    found = read_why(client, PodName(namespace, options.why))
    _print(options.output, why_document(found), why(found))
    return 0


def _defragment(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    page = read_moves(client, options.agent_namespace, options.scheduler_port)
    _print(options.output, moves_document(page), moves(page, colour=has_colour(sys.stdout, environ)))
    return 0


def _print(output: str, found: Mapping[str, Any], lines: Sequence[str]) -> None:
    match output:
        case "json":
            print(json_text(found))
        case "yaml":
            from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

            print(yaml_text.dump(found), end="")
        case _:
            print("\n".join(lines))


def _watch(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    over = sys.stdout.isatty() and options.output in ("table", "wide")
    lines = _lines(options, colour=has_colour(sys.stdout, environ), compact=True)
    heading = "" if options.output in ("json", "yaml") else "{} (Ctrl-C ends)" if over else "\n{}"
    screen = Screen(sys.stdout, over=over, now=lambda: time.strftime("%Y-%m-%d %H:%M:%S %z"), heading=heading)
    following = Following(
        client,
        options.nodes,
        _asking(options),
        usage=options.details,
        read_shown=_read_shown(options),
    )
    gc.enable()
    following.start()
    try:
        while True:
            _wait(following)
            following.updated.clear()
            if following.complete:
                screen.show(_shown(following.facts(), lines, options))
                _pause(options.interval)
            elif following.problems:
                raise KubeError(following.problems[0])
    finally:
        following.stop()


def _read_shown(options: argparse.Namespace) -> ReadNode:
    return read_node if options.health else read_node_with_gpus


def _wait(following: Following) -> None:
    """Wait for a change, or until the last facts are too old."""
    until = time.monotonic() + following.good_for_s
    while not following.updated.wait(min(CTRL_C_S, max(0.0, until - time.monotonic()))):
        if time.monotonic() >= until:
            return


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(CTRL_C_S, left))


def _shown(found: ClusterFacts, lines: Lines, options: argparse.Namespace) -> list[str]:
    report = build(found)
    there = {node.node.name for node in report.nodes}
    if missing := [name for name in options.nodes if name not in there]:
        note = f"no GPU node is called {', '.join(missing)} now"
        report = ClusterReport(report.nodes, report.waiting, report.usage_problem, (*report.problems, note))
    shown = lines(report)
    return shown or [NO_GPUS]


def _lines(options: argparse.Namespace, *, colour: bool, compact: bool = False) -> Lines:
    def as_json(report: ClusterReport) -> list[str]:
        return [json_text(document(report))] if compact else list(json_lines(report))

    def as_yaml(report: ClusterReport) -> list[str]:
        from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

        return [*(["---"] if compact else []), *yaml_lines(report, yaml_text.dump)]

    def as_table(report: ClusterReport) -> list[str]:
        columns = None if options.output == "wide" else terminal_columns(sys.stdout)
        if options.health:
            return health(report, colour=colour, columns=columns)
        table = partial(details if options.details else summary, report, wide=options.output == "wide")
        if columns is None or fits(table(colour=False), columns):
            return table(colour=colour)
        return narrow(report, columns, pods=options.details, colour=colour)

    return {"json": as_json, "yaml": as_yaml}.get(options.output, as_table)


def _asking(options: argparse.Namespace) -> Asking | None:
    if options.no_agents:
        return None
    return Asking(
        namespace=options.agent_namespace,
        port=options.agent_port,
        timeout_s=options.agent_timeout,
        every_agent=options.health,
    )


def _parser() -> CommandLine:
    parser = CommandLine(
        prog="kubectl inspect cgpu",
        description="Show which GPU of the cluster has what on it: memory, compute, whole GPUs, and the pods.",
        epilog="Exit codes: 0 success, 1 the cluster cannot be read, or there is no such node, 2 usage error, also in "
        "the kubeconfig. With --health, 1 also if a node has a problem that is not for information only.",
        examples=EXAMPLES,
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to show (default: every node with GPUs)")
    parser.add_argument("-d", "--details", action="store_true", help="show the pods on each node, and what they use")
    parser.add_argument("--health", action="store_true", help="show what is wrong on which node, and nothing else")
    parser.add_argument(
        "--defragment",
        action="store_true",
        help="show which pods gpuscheduler would move for those that wait, or moves; nothing is moved by this",
    )
    parser.add_argument("--why", metavar="POD", help="say in one sentence why this pod waits, and nothing else")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="with --why, namespace of the pod (default: the context's)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=["table", "wide", "json", "yaml"],
        default="table",
        help="output format (default: table)",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show every change until Ctrl-C")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="with --watch, minimum seconds between refreshes (default: 2)",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig file (default: KUBECONFIG, then ~/.kube/config)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    agents: dict[str, dict[str, Any]] = {
        "--agent-namespace": {
            "default": "kube-system",
            "metavar": "NAME",
            "help": "namespace of gpuagent and gpuscheduler (default: kube-system)",
        },
        "--agent-port": {
            "type": int,
            "default": 9445,
            "metavar": "PORT",
            "help": "HTTP port of the agents (default: 9445)",
        },
        "--agent-timeout": {
            "type": _seconds,
            "default": 5.0,
            "metavar": "SECONDS",
            "help": "seconds to wait for agents: without any response, and per 250 agents (default: 5)",
        },
        "--scheduler-port": {
            "type": int,
            "default": PORT,
            "metavar": "PORT",
            "help": f"with --defragment, HTTP port of gpuscheduler (default: {PORT})",
        },
        "--no-agents": {"action": "store_true", "help": "use labels and annotations only, and query no agent"},
    }
    for flag, how in agents.items():
        parser.add_argument(flag, **how)
    parser.add_version(PROG)
    return parser


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _DAY_S:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds above 0, a day at most")
    return seconds
