"""`--defragment`: what gpuscheduler would move."""

import argparse
import sys
from collections.abc import Mapping

from gpuagent.kube.api.client import Client
from gpuagent.system.output import has_colour
from inspectcgpu.commands.printing import print_answer
from inspectcgpu.fetch.scheduler import read_moves
from inspectcgpu.show.moves import document, moves


def show_moves(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the plans."""
    page = read_moves(client, options.agent_namespace, options.scheduler_port)
    print_answer(options.output, document(page), moves(page, colour=has_colour(sys.stdout, environ)))
    return 0
