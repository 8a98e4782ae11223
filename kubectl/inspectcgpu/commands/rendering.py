"""The report of nodes in the requested format."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpuagent.system.likeness import did_you_mean
from gpuagent.system.output import terminal_columns
from inspectcgpu.fetch.agents import Asking
from inspectcgpu.fetch.cluster import Wanted
from inspectcgpu.read.gpu_node import read_node, read_node_with_gpus
from inspectcgpu.report import ClusterReport, of_namespace
from inspectcgpu.show.brief import brief
from inspectcgpu.show.details import details
from inspectcgpu.show.documents import document, json_lines, json_text, yaml_lines
from inspectcgpu.show.health import COLUMNS as HEALTH_COLUMNS
from inspectcgpu.show.health import has_problem, health
from inspectcgpu.show.narrow import fits, narrow
from inspectcgpu.show.notes import some
from inspectcgpu.show.summary import summary, summary_rows
from inspectcgpu.summaries import COLUMNS, sorted_by

NO_GPUS = (
    "no GPU nodes: no node has aliyun.com/gpu-mem, aliyun.com/gpu-core.percentage or aliyun.com/gpu, or the label "
    "ack.node.gpu.schedule with another mode than default"
)
NO_GPUS_OF_NODE = "has no GPUs to share or to place"
FOR_PROGRAMS = ("json", "yaml", "name")
"""Output formats without words for people."""


def nothing(options: argparse.Namespace) -> str:
    """The line about a cluster in which there is nothing to show."""
    return f"no GPU node has the labels {options.selector}" if options.selector else NO_GPUS


def wanted_namespace(options: argparse.Namespace) -> str:
    """The only namespace of which pods are wanted; empty for all. As in kubectl, -A outranks -n."""
    return "" if options.all_namespaces else options.namespace or ""


def place(options: argparse.Namespace) -> str:
    """Where flags and names look for pods, for a sentence about none: `` of namespace web on node gpu-1``."""
    namespace = wanted_namespace(options)
    of_namespace_words = f" of namespace {namespace}" if namespace else ""
    if options.nodes:
        return f"{of_namespace_words} on node {some(options.nodes)}"
    if options.selector:
        return f"{of_namespace_words} on nodes with the labels {options.selector}"
    return of_namespace_words


def arranged(report: ClusterReport, options: argparse.Namespace) -> ClusterReport:
    """The report with the pods of the wanted namespaces, and with its nodes in the wanted order."""
    if options.health:
        report = sorted_by(report, HEALTH_COLUMNS[options.sort_by or "severity"])
    elif options.sort_by:
        report = sorted_by(report, COLUMNS[options.sort_by])
    namespace = wanted_namespace(options)
    if namespace:
        namespaces = {pod.pod.name.namespace for pod in report.pods}
        known = f"only pods of namespace {namespace} are listed"
        if namespace not in namespaces:
            known = f"no pod{place(options)} asks for GPUs{did_you_mean(namespace, namespaces)}"
        note = f"{known}; amounts count the pods of all namespaces"
        report = replace(of_namespace(report, namespace), problems=(*report.problems, note))
    return report


Lines = Callable[[ClusterReport], list[str]]


def lines_of(options: argparse.Namespace, *, colour: bool, compact: bool = False) -> Lines:
    """How a report is drawn. `compact`: as one of many documents in a stream."""

    def as_json(report: ClusterReport) -> list[str]:
        return [json_text(document(report))] if compact else list(json_lines(report))

    def as_yaml(report: ClusterReport) -> list[str]:
        from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

        start = ["---"] if compact else []
        return [*start, *yaml_lines(report, yaml_text.dump)]

    def as_table(report: ClusterReport) -> list[str]:
        return _table(report, options, colour=colour)

    def as_names(report: ClusterReport) -> list[str]:
        nodes = filter(has_problem, report.nodes) if options.health else report.nodes
        return [f"node/{node.node.name}" for node in nodes]

    return {"json": as_json, "yaml": as_yaml, "name": as_names}.get(options.output, as_table)


def _table(report: ClusterReport, options: argparse.Namespace, *, colour: bool) -> list[str]:
    is_wide = options.output == "wide"
    heads = not options.no_headers
    columns = None if is_wide else terminal_columns(sys.stdout)
    if options.health:
        return health(
            report,
            colour=colour,
            columns=columns,
            heads=heads,
            every_node=is_wide,
        )
    if options.output == "brief":
        return brief(report, columns, colour=colour, heads=heads)
    table = partial(details if options.details else summary, report, wide=is_wide, colour=colour)
    if not heads:
        table = partial(summary_rows, report, wide=is_wide, colour=colour)
    if columns is None or fits(table(colour=False), columns):
        return table()
    if options.details or len(report.nodes) == 1:
        return narrow(report, columns, pods=options.details, colour=colour)
    return brief(report, columns, colour=colour, heads=heads)


def asking(options: argparse.Namespace) -> Asking | None:
    """How agents are queried; None for never."""
    if options.no_agents:
        return None
    return Asking(
        namespace=options.agent_namespace,
        port=options.agent_port,
        timeout_s=options.agent_timeout,
        every_agent=options.health,
    )


def wanted(options: argparse.Namespace) -> Wanted:
    """Which nodes to show: the health of a node is of interest also if it has nothing to share."""
    read = read_node if options.health else read_node_with_gpus
    return Wanted(names=options.nodes, labels=options.selector or "", read=read)
