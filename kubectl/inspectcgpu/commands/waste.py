"""`--waste`: who holds GPU memory without using it."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace

from gpuagent.kube.api.client import Client
from gpuagent.system.output import has_colour
from inspectcgpu.commands.printing import complain, print_answer
from inspectcgpu.commands.rendering import asking, wanted
from inspectcgpu.fetch.agents import Asking, ask
from inspectcgpu.fetch.cluster import read_nodes
from inspectcgpu.read.waste import waste
from inspectcgpu.show.waste import document, waste_lines

TOO_OLD = "its agent is of a version that does not report what is used over time"


def show_waste(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print it; 1 if a named node does not exist."""
    nodes = read_nodes(client, wanted(options))
    every_agent = replace(asking(options) or Asking(), every_agent=True)
    names = [node.name for node in nodes.gpu]
    marked = {node.name for node in nodes.gpu if node.agent}
    answers = ask(client, every_agent, names, marked=marked)
    notes = [f"node {node}: {reason}" for node, reason in answers.unseen.items()]
    silent = [node for node, view in answers.views.items() if view.uses is None]
    notes += [f"node {node}: {TOO_OLD}" for node in silent]
    uses = {node: view.uses or () for node, view in answers.views.items()}
    is_part = bool(options.namespace) and not options.all_namespaces
    answer = waste(uses, notes, options.namespace if is_part else "")
    print_answer(options.output, document(answer), waste_lines(answer, colour=has_colour(sys.stdout, environ)))
    for name in nodes.missing:
        complain(f"there is no node {name}")
    return 1 if nodes.missing else 0
