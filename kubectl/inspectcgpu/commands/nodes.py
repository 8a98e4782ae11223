"""The report of nodes, once."""

import argparse
import sys
from collections.abc import Mapping

from gpuagent.kube.api.client import Client
from gpuagent.system.output import has_colour
from inspectcgpu.assemble.cluster_report import build
from inspectcgpu.commands.printing import complain
from inspectcgpu.commands.rendering import (
    FOR_PROGRAMS,
    NO_GPUS_OF_NODE,
    arranged,
    asking,
    lines_of,
    nothing,
    wanted,
)
from inspectcgpu.fetch.cluster import facts, on_nodes, read_nodes, read_other_sources, read_pods
from inspectcgpu.fetch.no_such_node import no_such_nodes
from inspectcgpu.show.health import has_problem


def show_nodes(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print it; 1 if a named node does not exist, or if the health of a node was requested and it has a problem."""
    which = wanted(options)
    nodes = read_nodes(client, which)
    # In a cluster without GPU nodes, all pods wait for one.
    pods = read_pods(client, options.nodes) if nodes.gpu or not which.is_part else ()
    if options.selector:
        pods = on_nodes(pods, nodes.gpu)
    others = read_other_sources(client, nodes.gpu, pods, asking(options), usage=options.details)
    report = arranged(build(facts(nodes.gpu, pods, others)), options)
    if nodes.gpu or report.waiting or options.output in FOR_PROGRAMS:
        lines = lines_of(options, colour=has_colour(sys.stdout, environ))(report)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    elif not options.nodes:
        print(nothing(options), file=sys.stderr)
    for name in nodes.without:
        complain(f"node {name} {NO_GPUS_OF_NODE}")
    for sentence in no_such_nodes(client, nodes.missing):
        complain(sentence)
    is_ill = options.health and any(map(has_problem, report.nodes))
    return 1 if nodes.missing or is_ill else 0
