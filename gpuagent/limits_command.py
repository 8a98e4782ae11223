"""The command line of `gpuagent memory-limits`, apart from the others: that process is privileged and loads little."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent.host.cgroups import CGROUP_ROOT
from gpuagent.host.limits_client import SOCKET, Description, LimitsClient, LimitsError
from gpuagent.system.command_line import CommandLine
from gpuagent.system.printable import error_words, printable

if TYPE_CHECKING:
    from gpuagent.limits_helper.probe import TellBackend

CHECK_S = 8.0
"""How long --check waits for an answer: less than the timeout of the chart's probe, which would hide the reason."""
HELP = "set memory limits of containers in the driver, for the agent"
ABOUT: dict[str, Any] = {
    "description": "Sets limits of GPU memory in the NVIDIA driver (615 and later), as the agent asks for them at a "
    "socket. The only part that needs CAP_SYS_ADMIN, so it runs in a container of its own, until SIGTERM. Limits stay "
    "when it ends.",
    "examples": (
        "gpuagent memory-limits                # in a container beside the agent's",
        "gpuagent memory-limits --check        # what can be limited here, and why not",
        "gpuagent memory-limits --simulate limits-misc --socket /tmp/limits.sock",
    ),
}


class UsageError(Exception):
    """A flag cannot be followed; the text says which and why."""


def run(arguments: Sequence[str]) -> int:
    """Run the command with these flags; the exit code: 0 success, 1 error, 2 usage error."""
    parser = CommandLine(prog="gpuagent memory-limits", **ABOUT)
    add_flags(parser)
    return execute(parser.parse_args(arguments))


def add_flags(parser: CommandLine) -> None:
    parser.add_argument(
        "--socket", type=Path, default=SOCKET, metavar="PATH", help=f"where the agent asks (default: {SOCKET})"
    )
    parser.add_argument(
        "--cgroup-root",
        type=Path,
        default=CGROUP_ROOT,
        metavar="DIR",
        help=f"where the node's cgroups are mounted, writable (default: {CGROUP_ROOT})",
    )
    parser.add_argument(
        "--pods-cgroup",
        default="",
        metavar="PATH",
        help="the cgroup of all pods, below the root, such as kubelet/kubepods (default: it is searched)",
    )
    parser.add_argument("--check", action="store_true", help="ask the process that serves at --socket, and exit")
    parser.add_argument("--simulate", metavar="BOX", help="limit the memory of a simulated box instead")
    parser.add_argument(
        "--simulate-socket", type=Path, metavar="PATH", help="take faults of the simulated box at this socket"
    )
    parser.add_argument(
        "--simulate-device",
        type=Path,
        metavar="PATH",
        help="let programs allocate memory of the simulated box at this socket",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    if options.check:
        return _check(options.socket)
    from gpuagent.limits_helper import process  # noqa: PLC0415 (loads NVML's library)

    place = process.place_of(options.cgroup_root, options.pods_cgroup, os.environ)
    try:
        tell_backend = _simulated(options)
        process.serve(options.socket, place, tell_backend)
    except process.SocketPathError as err:
        error: Exception = UsageError(f"--socket: {err}")
    except UsageError as err:
        error = err
    print(printable(f"gpuagent: {error}"), file=sys.stderr)
    return 2


def _check(socket: Path) -> int:
    """Print what the helper at `socket` can do. The exit code: 0 if it answers, whatever it says."""
    try:
        with closing(LimitsClient(socket, deadline_s=CHECK_S)) as client:
            description = client.describe()
    except LimitsError as err:
        print(printable(f"gpuagent: {err}"), file=sys.stderr)
        return 1
    for line in _lines(description):
        print(printable(line))
    return 0


def _simulated(options: argparse.Namespace) -> "TellBackend | None":
    """Put a simulated box in place of the driver, if asked; its way to tell the backend, since it writes no files."""
    sockets = {"--simulate-socket": options.simulate_socket, "--simulate-device": options.simulate_device}
    given = {flag: path for flag, path in sockets.items() if path}
    if not options.simulate:
        if given:
            raise UsageError(f"{next(iter(given))} is of use with --simulate only")
        return None
    from gpuagent.simulation import boxes, simulator  # noqa: PLC0415 (only for simulation)

    source = simulator.CgroupSource(options.cgroup_root.absolute())
    try:
        simulated = simulator.install(boxes.load(options.simulate), source)
    except boxes.BoxError as err:
        raise UsageError(f"--simulate: {err}") from err
    listeners = {"--simulate-socket": simulated.listen, "--simulate-device": simulated.listen_for_processes}
    for flag, path in given.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            listeners[flag](path)
        except (OSError, ValueError) as err:
            raise UsageError(f"{flag} {path}: cannot listen there: {error_words(err)}") from err
    return lambda *_: simulated.backend


def _lines(description: Description) -> list[str]:
    lines = [
        f"driver   {description.driver or 'not known'}",
        f"backend  {description.backend or 'none'}",
        f"pods     {description.pods_root or 'not found'}",
    ]
    for uuid, why in description.gpus.items():
        lines.append(f"{uuid}  {why or 'memory can be limited'}")
    if description.problem:
        lines.append(f"problem  {description.problem}")
    return lines
