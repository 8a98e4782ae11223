"""`--waste`: who holds GPU memory without using it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuagent.domain.fleet.waste import Waste, waste
from gpuagent.kube.api.client import Client
from gpuagent.system.likeness import did_you_mean
from gpuagent.system.output import has_colour
from gpuagent.system.printable import first_of, printable
from inspectcgpu.commands.printing import complain, print_answer
from inspectcgpu.commands.rendering import (
    FOR_PROGRAMS,
    NO_GPUS_OF_NODE,
    asking,
    nothing,
    place,
    wanted,
    wanted_namespace,
)
from inspectcgpu.fetch.agents import Answers, Asking, ask
from inspectcgpu.fetch.cluster import read_nodes
from inspectcgpu.fetch.no_such_node import no_such_nodes
from inspectcgpu.read.gpu_node import GpuNode
from inspectcgpu.show.waste import document, pod_rows, sorted_by, waste_lines

_MOST_NAMED = 3
TOO_OLD = "its agent is of a version that does not report what is used over time"


def show_waste(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print it; 1 if a named node does not exist."""
    nodes = read_nodes(client, wanted(options))
    is_for_people = options.output not in FOR_PROGRAMS
    if not nodes.gpu and not options.nodes and is_for_people:
        print(nothing(options), file=sys.stderr)
        return 0
    answers = _ask_agents(client, options, nodes.gpu)
    answer = _answer(answers, options)
    colour = has_colour(sys.stdout, environ)
    # Scripts take the lines of the pods alone.
    lines_of = pod_rows if options.no_headers else waste_lines
    print_answer(options.output, document(answer), lines_of(answer, colour=colour))
    if not answer.pods and is_for_people and nodes.gpu:
        print(_nothing_held(answers, options), file=sys.stderr)
    for name in nodes.without:
        complain(f"node {name} {NO_GPUS_OF_NODE}")
    for sentence in no_such_nodes(client, nodes.missing):
        complain(sentence)
    return 1 if nodes.missing else 0


def _answer(answers: Answers, options: argparse.Namespace) -> Waste:
    """What the agents say of the wanted namespaces."""
    # An agent of an older version does not say it; a note names its node.
    uses = {node: view.uses or () for node, view in answers.views.items()}
    answer = waste(uses, _notes(answers), wanted_namespace(options))
    return sorted_by(answer, options.sort_by) if options.sort_by else answer


def _nothing_held(answers: Answers, options: argparse.Namespace) -> str:
    """That there is no such pod, and which namespace was probably meant."""
    namespaces = {use.pod.namespace for view in answers.views.values() for use in view.uses or ()}
    meant = did_you_mean(wanted_namespace(options), namespaces)
    return printable(f"no agent reports a pod{place(options)} that holds a GPU{meant}")


def _ask_agents(client: Client, options: argparse.Namespace, nodes: Sequence[GpuNode]) -> Answers:
    # Also agents that have nothing to add to what the API server knows, because only agents know the use.
    every_agent = replace(asking(options) or Asking(), every_agent=True)
    names = [node.name for node in nodes]
    marked = {node.name for node in nodes if node.agent}
    return ask(client, every_agent, names, marked=marked)


def _notes(answers: Answers) -> list[str]:
    """Which nodes are missing in the answer, and why."""
    notes = []
    if answers.pods_problem and answers.not_queried:
        left_out = first_of(answers.not_queried, _MOST_NAMED)
        notes.append(
            f"left out, because the agents' pods cannot be listed and the nodes do not name an agent: {left_out}. "
            f"{answers.pods_problem}"
        )
    notes += [f"node {node}: {reason}" for node, reason in answers.unseen.items()]
    without_uses = [node for node, view in answers.views.items() if view.uses is None]
    return notes + [f"node {node}: {TOO_OLD}" for node in without_uses]
