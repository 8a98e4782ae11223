"""The command line: `gpuscheduler run`."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.settings.table import ConfigError
from gpuagent.system import log
from gpuagent.system.command_line import CommandLine
from gpuagent.system.printable import printable
from gpuscheduler.app import App
from gpuscheduler.garbage import keep_collections_short
from gpuscheduler.scheduler_settings import TABLE, SchedulerSettings

SWITCH_S = 0.0005
"""How long a thread of the pages may go on computing while the scheduler's loop has work. Python's default is 5 ms."""


def run(arguments: Sequence[str]) -> int:
    """Run one command, and end the process once it has stopped. Returns 2 after a usage error, also in settings."""
    options = make_parser().parse_args(arguments)
    try:
        settings = TABLE.load(vars(options), os.environ)
        write_out = log.setup(settings.log_format, settings.log_level)
        sys.setswitchinterval(SWITCH_S)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except (ConfigError, ApiConfigError) as err:
        print(printable(f"gpuscheduler: {err}"), file=sys.stderr)
        return 2
    write_out()
    os._exit(0)  # Python's own exit waits for the log, and would never end if nothing reads it


def make_parser() -> CommandLine:
    """The parser of the command line."""
    parser = CommandLine(
        prog="gpuscheduler",
        description="Places GPU shares, whole GPUs and jobs for the stock kube-scheduler.",
    )
    parser.add_version("gpuscheduler")
    commands = parser.add_commands()
    running = commands.add_parser(
        "run",
        help="serve a kube-scheduler as its extender",
        description="Follow nodes and pods, and answer the filter, bind and preempt calls of a kube-scheduler.",
        usage="gpuscheduler run [flags]",
        epilog="Every flag has its twin in the environment (in brackets) and in the --config file; flags win.",
        examples=("gpuscheduler run --kubeconfig ~/.kube/config --policy strand",),
    )
    TABLE.add_flags(running)
    return parser


async def _run(settings: SchedulerSettings) -> None:
    app = App(settings, when_ready=keep_collections_short)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, app.stop)
    await app.run()
