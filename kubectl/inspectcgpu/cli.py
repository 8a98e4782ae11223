"""The command line: `kubectl inspect cgpu [NODE ...]`."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

from gpuagent.kube.api.api_errors import ApiConfigError, KubeError
from gpuagent.kube.api.client import Client
from inspectcgpu.arguments import as_argparse_takes
from inspectcgpu.combinations import check, column_of, command_of
from inspectcgpu.commands.printing import complain
from inspectcgpu.fetch.choose_cluster import connect
from inspectcgpu.flags import ALL, STATUS, make_parser, overrides_of
from inspectcgpu.names import node_name, pod_or_workload
from inspectcgpu.usage_error import UsageError

Command = Callable[[Client, argparse.Namespace, Mapping[str, str]], int]


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; 0 success, 1 not read, no such node, or a problem with --health, 2 usage error."""
    if arguments[:1] == ["__complete"]:
        from inspectcgpu.commands.complete import complete  # noqa: PLC0415

        return complete(arguments[1:], environ)
    try:
        options = make_parser().parse_args(as_argparse_takes(arguments, ALL))
        check(options)
        options.sort_by = column_of(options)
        command = _command(options)
        _read_names(options)
        client = connect(options.kubeconfig, overrides_of(options), environ, options.request_timeout)
        return command(client, options, environ)
    except (UsageError, ApiConfigError) as err:
        complain(str(err))
        return 2
    except KubeError as err:
        complain(str(err))
        return 1


def _command(options: argparse.Namespace) -> Command:
    """What the flags ask for. Each command is loaded when it is needed, so that the others start quickly."""
    name = command_of(options)
    if name == STATUS:
        from inspectcgpu.commands.status import show_status  # noqa: PLC0415

        return show_status
    if name == "--why":
        from inspectcgpu.commands.why import show_why  # noqa: PLC0415 (it loads the scheduler's core)

        return show_why
    if name == "--defragment":
        from inspectcgpu.commands.defragment import show_moves  # noqa: PLC0415

        return show_moves
    if name == "--waste":
        from inspectcgpu.commands.waste import show_waste  # noqa: PLC0415

        return show_waste
    if options.watch:
        from inspectcgpu.commands.watch import watch_nodes  # noqa: PLC0415

        return watch_nodes
    from inspectcgpu.commands.nodes import show_nodes  # noqa: PLC0415

    return show_nodes


def _read_names(options: argparse.Namespace) -> None:
    """Replace names of kubectl's kind, such as ``node/gpu-1``, by those of the objects."""
    options.nodes = [node_name(word) for word in options.nodes]
    if options.why is not None:
        options.why = pod_or_workload(options.why)
