"""The report of nodes, once."""

import argparse
import sys
from collections.abc import Mapping

from gpuagent.kube.api.client import Client
from gpuagent.system.output import has_colour
from inspectcgpu.commands.printing import complain
from inspectcgpu.commands.rendering import FOR_PROGRAMS, NO_GPUS, asking, lines_of, read_shown
from inspectcgpu.fetch.cluster import facts, read_nodes, read_other_sources, read_pods
from inspectcgpu.report import build
from inspectcgpu.show.health import has_problem


def show_nodes(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print it; 1 if a named node does not exist, or if the health of a node was requested and it has a problem."""
    nodes = read_nodes(client, options.nodes, read_shown(options))
    # At least one node is shown: in a cluster without GPU nodes, all pods wait for one.
    pods = read_pods(client, options.nodes) if nodes.gpu or not options.nodes else ()
    others = read_other_sources(client, nodes.gpu, pods, asking(options), usage=options.details)
    report = build(facts(nodes.gpu, pods, others))
    if nodes.gpu or report.waiting or options.output in FOR_PROGRAMS:
        lines = lines_of(options, colour=has_colour(sys.stdout, environ))
        print("\n".join(lines(report)))
    elif not options.nodes:
        print(NO_GPUS, file=sys.stderr)
    for name in nodes.without:
        complain(f"node {name} has no GPUs to share or to place")
    for name in nodes.missing:
        complain(f"there is no node {name}")
    is_ill = options.health and any(map(has_problem, report.nodes))
    return 1 if nodes.missing or is_ill else 0
