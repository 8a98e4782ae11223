"""The command line: `gpuagent run`, `status`, `topology`, `memory-limits`, `mps-control`, `simulate`."""

import argparse
import gc
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent import __version__, limits_command
from gpuagent.host.mps_client import ACK, CONTROL, MpsError
from gpuagent.isolation.mps import control as mps_control
from gpuagent.pages.drawing import STATUS_KEYS, OtherAgentError, drawn
from gpuagent.settings import settings as config
from gpuagent.settings import values
from gpuagent.settings.settings import Settings
from gpuagent.settings.table import ConfigError
from gpuagent.system import log
from gpuagent.system.command_line import CommandLine
from gpuagent.system.output import has_colour
from gpuagent.system.printable import printable
from gpuagent.system.stop_signal import StopSignal

if TYPE_CHECKING:
    from gpuagent.simulation.simulator import Simulator

DEFAULT_STATUS_URL = "http://127.0.0.1:9445"
EXAMPLES = (
    "gpuagent status                           # what this node's agent does",
    "gpuagent topology --simulate dgx1-v100    # the links of a simulated box",
    "gpuagent run --dry-run --simulate dgx-a100 --mode share",
)
RUN_EXAMPLES = (
    'gpuagent run --node-name "$NODE_NAME"         # in a pod, as the chart does',
    "gpuagent run --dry-run --simulate dgx-a100 --mode share",
    "gpuagent run --kubeconfig ~/.kube/config --memory-unit 256MiB",
)
OUTPUTS = ("table", "json", "yaml")
OUTPUT_HELP = "output format (default: table)"
FAULT_EXAMPLE = '{"fault": "xid", "gpu": 0, "code": 79}'
TOPOLOGY_KEYS = frozenset({"node", "version", "gpus", "links", "best", "notes"})
SWITCH_S = 0.0005
"""How long a thread that reads a long list may keep a call of kubelet's waiting, instead of Python's 5 ms."""
LOADED_S = 10.0
"""Seconds after the start by which every module is loaded; the garbage collector then ignores the objects made so far.

A collection over all objects of the libraries takes tens of milliseconds, and would delay an Allocate call.
"""


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code: 0 success, 1 error, 2 usage error, also in settings."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.command(options)
    except ConfigError as err:
        print(printable(f"gpuagent: {err}"), file=sys.stderr)
        return 2
    except (NoAgentError, OtherAgentError) as err:
        print(printable(f"gpuagent: {err}"), file=sys.stderr)
        return 1
    return code


def make_parser() -> CommandLine:
    parser = CommandLine(prog="gpuagent", description="The per-node GPU agent for Kubernetes.", examples=EXAMPLES)
    parser.add_version("gpuagent")
    commands = parser.add_commands()

    running = commands.add_parser(
        "run",
        help="run the agent on this node",
        description="Discover GPUs, advertise them to kubelet as the node label says, and serve allocations.",
        usage="gpuagent run [flags]",
        epilog="Every flag has its twin in the environment (in brackets) and in the --config file; flags win.",
        examples=RUN_EXAMPLES,
    )
    config.TABLE.add_flags(running)
    running.add_argument(
        "--dry-run", action="store_true", help="print what would be advertised, and exit [GPUAGENT_DRY_RUN]"
    )
    running.set_defaults(command=_run)

    url: dict[str, Any] = {
        "default": os.environ.get("GPUAGENT_URL", DEFAULT_STATUS_URL),
        "metavar": "URL",
        "help": f"address of the agent's HTTP port (default: {DEFAULT_STATUS_URL})",
    }
    status = commands.add_parser(
        "status",
        help="show what the agent on this node does",
        description="Asks the agent on this node for the mode in force, what each GPU's containers hold, "
        "what is advertised, and what is wrong.",
        examples=("gpuagent status", "gpuagent status -o json | jq .problems"),
    )
    status.add_argument("-o", "--output", choices=OUTPUTS, default="table", help=OUTPUT_HELP)
    status.add_argument("--url", **url)
    status.set_defaults(command=_status)

    topology = commands.add_parser(
        "topology",
        help="show what joins the GPUs of this node, and the best sets of them",
        description="Asks the agent on this node. Where none answers, reads the driver, and every GPU counts as free.",
        examples=("gpuagent topology --simulate dgx1-v100", "gpuagent topology -o json | jq .best"),
    )
    topology.add_argument("-o", "--output", choices=OUTPUTS, default="table", help=OUTPUT_HELP)
    topology.add_argument("--simulate", metavar="BOX", help="show a simulated box instead")
    topology.add_argument("--url", **url)
    topology.set_defaults(command=_topology)

    mps = commands.add_parser(
        "mps-control",
        help="run NVIDIA MPS's control daemons in a container of their own",
        description="Runs a daemon for each GPU in the foreground, so that none ends with the agent, until SIGTERM.",
    )
    mps.add_argument(
        "--program", default=CONTROL, metavar="FILE", help=f"name or path of MPS's control program (default: {CONTROL})"
    )
    mps.add_argument(
        "--pipe-dir",
        type=Path,
        default=ACK,
        metavar="DIR",
        help=f"directory of the pipes for clients, which has a folder for each GPU (default: {ACK})",
    )
    mps.add_argument(
        "--log-dir",
        type=Path,
        default=Path("/var/log/mps"),
        metavar="DIR",
        help="directory of MPS's logs (default: /var/log/mps)",
    )
    mps.add_argument(
        "--exclusive", action="store_true", help="set each GPU to compute mode EXCLUSIVE_PROCESS while its daemon runs"
    )
    mps.add_argument("--simulate", metavar="BOX", help="run daemons for the GPUs of a simulated box instead")
    mps.set_defaults(command=_mps_control)

    limits = commands.add_parser("memory-limits", help=limits_command.HELP, **limits_command.ABOUT)
    limits_command.add_flags(limits)
    limits.set_defaults(command=limits_command.execute)

    simulate = commands.add_parser(
        "simulate",
        help="inject a fault into an agent that runs with --simulate",
        description="Injects a fault into the simulated GPUs. docs/operations.md lists every fault.",
        examples=(
            f"gpuagent simulate '{FAULT_EXAMPLE}'",
            """gpuagent simulate '{"fault": "lose", "gpu": 0, "silent": true}'   # no XID""",
        ),
    )
    simulate.add_argument("fault", metavar="FAULT", help="the fault as JSON")
    simulate.add_argument(
        "--state-dir",
        type=Path,
        default=Path("/var/lib/gpuagent"),
        metavar="DIR",
        help="the agent's state directory (default: /var/lib/gpuagent)",
    )
    simulate.set_defaults(command=_simulate)
    return parser


def _run(options: argparse.Namespace) -> int:
    settings = config.load(vars(options), os.environ)
    write_out = log.setup(settings.log_format, settings.log_level)
    dry_run = options.dry_run or values.is_on(os.environ.get("GPUAGENT_DRY_RUN", "false"))
    _simulated(settings, listen=not dry_run)
    if dry_run:
        from gpuagent import dry_run as dryrun  # noqa: PLC0415 (only this command needs it)

        return dryrun.dry_run(settings)
    from gpuagent.agent.agent import Agent  # noqa: PLC0415 (imports grpc: slow, and useless to the other commands)

    sys.setswitchinterval(SWITCH_S)
    stop = StopSignal()
    agent = Agent(settings)
    try:
        agent.start()
    except OSError as err:
        host, port = settings.http_address or ("", 0)
        raise ConfigError(f"cannot listen on --http-address {host}:{port}: {err.strerror}") from err
    # A signal that comes earlier ends the agent at once.
    if not stop.wait(LOADED_S):
        gc.freeze()
        stop.wait()
    agent.stop()
    write_out()
    sys.stdout.flush()
    os._exit(0)  # a thread that hangs in the driver must not keep the process


def _mps_control(options: argparse.Namespace) -> int:
    from gpuagent.nvml.driver_errors import DriverError  # noqa: PLC0415 (only for this command)
    from gpuagent.nvml.gpu_reader import discover  # noqa: PLC0415 (the same)

    if options.simulate:
        _install(options.simulate)
    try:
        gpus = discover().gpus
        return mps_control.serve(options.program, options.pipe_dir, options.log_dir, gpus, exclusive=options.exclusive)
    except DriverError as err:
        print(f"gpuagent: NVIDIA driver: {err}", file=sys.stderr)
        return 1
    except (mps_control.MpsStartError, MpsError) as err:
        print(f"gpuagent: {err}", file=sys.stderr)
        return 1


def _simulated(settings: Settings, *, listen: bool) -> None:
    if not settings.simulate:
        return
    simulator = _install(settings.simulate)
    if not listen:
        return
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        simulator.listen(settings.state_dir / "simulator.sock")
    except (OSError, ValueError) as err:
        why = _words(err)
        raise ConfigError(f"--state-dir {settings.state_dir}: cannot take faults there: {why}") from err


def _install(box: str) -> "Simulator":
    """Put a simulated box in place of the driver."""
    from gpuagent.simulation import boxes, simulator  # noqa: PLC0415 (only for simulation)

    try:
        return simulator.install(boxes.load(box))
    except boxes.BoxError as err:
        raise ConfigError(f"--simulate: {err}") from err


def _simulate(options: argparse.Namespace) -> int:
    from gpuagent.simulation.fault_socket import inject  # noqa: PLC0415 (only for simulation)

    path = options.state_dir / "simulator.sock"
    try:
        fault = json.loads(options.fault)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"the fault is not JSON ({err}); write it like {FAULT_EXAMPLE}") from err
    try:
        print(json.dumps(inject(path, fault)))
    except ValueError as err:
        raise ConfigError(f"not a fault: {err}; write it like {FAULT_EXAMPLE}") from err
    except OSError as err:
        print(f"gpuagent: no simulated agent answers at {path}: {err.strerror}", file=sys.stderr)
        return 1
    return 0


def _status(options: argparse.Namespace) -> int:
    page = ask(options.url, "status", STATUS_KEYS)
    if options.output != "table":
        _print_document(page, options.output)
    else:
        from gpuagent.pages.status_table import render  # noqa: PLC0415 (only this command needs it)

        print(drawn(partial(render, colour=has_colour(sys.stdout, os.environ)), page))
    return 0


def _print_document(page: dict[str, Any], form: str) -> None:
    if form == "json":
        print(json.dumps(page, indent=2))
    else:
        from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

        print(yaml_text.dump(page), end="")


def _topology(options: argparse.Namespace) -> int:
    page = _topology_page(options)
    if options.output != "table":
        _print_document(page, options.output)
    else:
        from gpuagent.pages.topology_table import render  # noqa: PLC0415 (only this command needs it)

        print(drawn(render, page))
    return 0


def _topology_page(options: argparse.Namespace) -> dict[str, Any]:
    """Return the page of a simulated box, of the agent, or of the driver, which has no data on pods.

    Raises:
        NoAgentError: neither the agent nor the driver answers.
        OtherAgentError: another program answers.
    """
    from gpuagent.nvml import offline_topology  # noqa: PLC0415 (only this command needs it)

    if options.simulate is not None:
        _install(options.simulate)
        return offline_topology.topology_page()
    try:
        return ask(options.url, "topology", TOPOLOGY_KEYS)
    except NoAgentError as no_agent:
        try:
            page = offline_topology.topology_page()
        except offline_topology.DriverError as err:
            raise NoAgentError(f"{no_agent}, and the NVIDIA driver: {err}") from None
        print(
            printable(f"gpuagent: {no_agent}; read from the driver, so who holds a GPU is not known"), file=sys.stderr
        )
        return page


class NoAgentError(Exception):
    """No agent answers; the text says where and why."""


def ask(url: str, name: str, keys: frozenset[str]) -> dict[str, Any]:
    """The JSON page `name` of the agent's HTTP port, with all of `keys`. Raises NoAgentError, OtherAgentError."""
    if not _is_url(url):
        raise ConfigError(f"--url: {url!r} is not like {DEFAULT_STATUS_URL}")
    try:
        address = f"{url.rstrip('/')}/{name}"
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 (the operator's URL)
            page: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as err:
        raise OtherAgentError(f"what answers at {url} has no page /{name} ({err.code} {err.reason})") from err
    except (OSError, http.client.HTTPException) as err:
        reason = err.reason if isinstance(err, urllib.error.URLError) else err
        raise NoAgentError(f"no agent answers at {url}: {_words(reason)}") from err
    except ValueError as err:
        raise OtherAgentError(f"what answers at {url} is not a gpuagent") from err
    if not isinstance(page, dict) or not keys <= page.keys():
        is_ours = isinstance(page, dict) and "version" in page
        which = f"gpuagent {page['version']}" if is_ours else "not a gpuagent"
        raise OtherAgentError(f"what answers at {url} is {which}; this command is of gpuagent {__version__}")
    return page


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port above 65535
        return False


def _words(error: object) -> str:
    """An error without its number, which does not help people."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
