"""`status NODE`: what `gpuagent status` prints on that node."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial

from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from gpuagent.pages.drawing import OtherAgentError, drawn
from gpuagent.pages.status_table import render
from gpuagent.system.output import has_colour
from inspectcgpu.commands.printing import FOR_PROGRAMS, print_document
from inspectcgpu.fetch.status import read_status


def show_status(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the page of the node's agent."""
    _, node = options.nodes
    page = read_status(client, options.agent_namespace, options.agent_port, node)
    if options.output in FOR_PROGRAMS:
        print_document(options.output, page)
        return 0
    try:
        print(drawn(partial(render, colour=has_colour(sys.stdout, environ)), page))
    except OtherAgentError as err:
        raise KubeError(str(err)) from err
    return 0
