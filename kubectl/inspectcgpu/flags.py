"""The flags of `kubectl inspect cgpu`: one table for each group, and the parser that they make."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuagent.kube.api.overrides import Impersonation, Overrides
from gpuagent.system.command_line import SHELLS, CommandLine

PROG = "kubectl-inspect-cgpu"
STATUS = "status"
"""The first name on the line for the command `status NODE`; a node of that name is selected by a label."""
AGENT_PORT = 9445
SCHEDULER_PORT = 9447
NODES_HELP = (
    "nodes to show (default: every node with GPUs); `status NODE` shows what the agent of one node does, as "
    "`gpuagent status` on the node"
)
EXAMPLES = (
    "kubectl inspect cgpu              # every node with GPUs",
    "kubectl inspect cgpu -o brief     # a line for each node",
    "kubectl inspect cgpu -d gpu-1     # the pods of one node, and what they use",
    "kubectl inspect cgpu --health     # what is wrong on which node",
    "kubectl inspect cgpu status gpu-1 # its GPUs, who holds what, problems",
    "kubectl inspect cgpu -w           # every change, until Ctrl-C",
    "kubectl inspect cgpu --why chat   # why the pod chat waits, in one sentence",
    "kubectl inspect cgpu --why job/a  # why the pods of a Job wait",
    "kubectl inspect cgpu --defragment # what would move for pods that wait",
    "kubectl inspect cgpu --waste      # who holds GPU memory without using it",
    "kubectl inspect cgpu -o json      # for a program",
)
OUTPUTS = ("table", "brief", "wide", "name", "json", "yaml")
NODE_COLUMNS = ("name", "mode", "model", "gpus", "held", "free", "pods", "waiting", "problems")
HEALTH_COLUMNS = ("node", "mode", "gpus", "severity", "problem")
WASTE_COLUMNS = ("pod", "namespace", "node", "held", "used", "peak", "unused", "idle")
"""What `--sort-by` takes. The first is the name of what is listed."""
_DAY_S = 86400
_LAST_PORT = 65535
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|ns|h|m|s)"
_DURATION = re.compile(f"(?:{_PART})+")
_OTHER_OUTPUTS = (
    "jsonpath",
    "jsonpath-as-json",
    "jsonpath-file",
    "custom-columns",
    "custom-columns-file",
    "go-template",
    "go-template-file",
    "template",
    "templatefile",
    "kyaml",
)
"""Kubectl's output formats that are not supported."""


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

    @property
    def takes_value(self) -> bool:
        """Whether a value follows."""
        return self.how.get("action") != "store_true"


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


def port(value: str) -> int:
    """A TCP port from a command line."""
    number = int(value) if value.isascii() and value.isdigit() else 0
    if not 1 <= number <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{value!r} is not a port: a number from 1 to {_LAST_PORT}")
    return number


def request_timeout(value: str) -> float:
    """The value of kubectl's `--request-timeout` in seconds: ``5s``, ``1m30s``, or a number; 0 is as long as it takes.

    Source: ParseTimeout of k8s.io/client-go/tools/clientcmd, and ParseDuration of Go's time.
    """
    if value.isascii() and value.isdigit():
        total_s = float(value)
    elif _DURATION.fullmatch(value):
        parts = re.findall(_PART, value)
        total_s = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    else:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds or a time such as 5s, 2m or 1h")
    return min(total_s, _DAY_S) or _DAY_S


def output(value: str) -> str:
    """The value of `--output`; for one of kubectl's others, the error names what to use."""
    if value.partition("=")[0] in _OTHER_OUTPUTS:
        text = f"{value!r} is not supported here: use -o json and jq, for example jq -r '.nodes[].name'"
        raise argparse.ArgumentTypeError(text)
    # Kubectl takes them in any case.
    return value.lower()


SHOWN = (
    _switch("-d", "--details", help="show the pods on each node, and what they use"),
    _switch("--health", help="show what is wrong on which node, and nothing else"),
    _switch(
        "--defragment",
        help="show which pods gpuscheduler would move for those that wait, or moves; nothing is moved by this",
    ),
    _switch("--waste", help="show which pods and namespaces hold GPU memory without using it, the most first"),
    _value(
        "--why",
        metavar="POD",
        help="say in one sentence why this pod waits, or each pod of deployment/NAME, job/NAME and others",
    ),
    _value("-l", "--selector", metavar="LABELS", help="show the nodes with these labels, as in zone=a,tier!=b"),
    _value(
        "-n",
        "--namespace",
        metavar="NAME",
        help="list the pods of this namespace only; with --why, namespace of the pod (default: the context's)",
    ),
    _switch("-A", "--all-namespaces", help="list the pods of all namespaces, which is the default"),
    Flag(
        ("-o", "--output"),
        f"output format: {', '.join(OUTPUTS)} (default: table)",
        {"choices": OUTPUTS, "type": output, "default": "table", "metavar": "FORMAT"},
    ),
    _value(
        "--sort-by",
        metavar="COLUMN",
        help=f"order by a column, numbers from the largest: {', '.join(NODE_COLUMNS)}; with --health: "
        f"{', '.join(HEALTH_COLUMNS)}; with --waste: {', '.join(WASTE_COLUMNS)}",
    ),
    _switch("--no-headers", help="print the lines of nodes, with --waste of pods, without headings, totals and notes"),
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
    _value("--cluster", metavar="NAME", help="cluster of the kubeconfig (default: the context's)"),
    _value("--user", metavar="NAME", help="user of the kubeconfig (default: the context's)"),
    _value("-s", "--server", metavar="URL", help="address of the API server"),
    _value("--token", metavar="TOKEN", help="bearer token"),
    _value("--as", metavar="USER", help="impersonate this user", dest="as_user"),
    _value(
        "--as-group",
        metavar="GROUP",
        help="with --as, impersonate this group; may be repeated",
        action="append",
        dest="as_groups",
    ),
    _value("--as-uid", metavar="UID", help="with --as, impersonate this UID"),
    _value("--certificate-authority", metavar="FILE", help="certificates of those who sign the API server's"),
    _value("--client-certificate", metavar="FILE", help="certificate of this client"),
    _value("--client-key", metavar="FILE", help="key of --client-certificate"),
    _value("--tls-server-name", metavar="NAME", help="name in the API server's certificate"),
    _switch("--insecure-skip-tls-verify", help="do not verify the API server's certificate"),
    _value(
        "--request-timeout",
        metavar="TIME",
        help="longest silence of the API server, such as 5s or 2m; 0 is any (default: 30s)",
        type=request_timeout,
    ),
)
"""Which cluster and as whom: kubectl's flags of the same names."""

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
        type=port,
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
        type=port,
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


SELF = (
    _switch("-h", "--help", help="show help"),
    _switch("--version", help="show the version"),
    _value("--completion", metavar="SHELL", help="print the completion of a shell", choices=SHELLS),
)
"""Flags about the program itself, which the parser has by itself."""

ALL = (*SHOWN, *CLUSTER, *AGENTS, *SELF)


def overrides_of(options: argparse.Namespace) -> Overrides:
    """What the flags say in place of the kubeconfig."""
    impersonation = Impersonation(
        user=options.as_user or "",
        uid=options.as_uid or "",
        groups=tuple(options.as_groups or ()),
    )
    return Overrides(
        context=options.context or "",
        cluster=options.cluster or "",
        user=options.user or "",
        server=options.server or "",
        server_name=options.tls_server_name or "",
        authority=options.certificate_authority or "",
        insecure=options.insecure_skip_tls_verify,
        token=options.token or "",
        client_certificate=options.client_certificate or "",
        client_key=options.client_key or "",
        impersonation=impersonation,
    )


def make_parser() -> CommandLine:
    """The parser of the whole command line."""
    parser = CommandLine(
        prog="kubectl inspect cgpu",
        usage="kubectl inspect cgpu [NODE ...] [flags]\n       kubectl inspect cgpu status NODE [flags]",
        description="Show which GPU of the cluster has what on it: memory, compute, whole GPUs, and the pods.",
        epilog="Exit codes: 0 success, 1 the cluster cannot be read, or there is no such node, 2 usage error, also in "
        "the kubeconfig. With --health, 1 also if a node has a problem that is not for information only.",
        examples=EXAMPLES,
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help=NODES_HELP)
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            group.add_argument(*flag.names, help=flag.help, **flag.how)
    parser.add_version(PROG)
    return parser
