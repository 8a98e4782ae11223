"""`--watch`: the report of nodes at every change, until Ctrl-C."""

import argparse
import gc
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from gpuagent.system.output import has_colour
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.assemble.cluster_report import build
from inspectcgpu.commands.rendering import FOR_PROGRAMS, Lines, arranged, asking, lines_of, nothing, wanted
from inspectcgpu.fetch.following import Following
from inspectcgpu.show.screen import Screen

CTRL_C_S = 0.5
"""Longest sleep. If another thread receives the signal of Ctrl-C, a sleeping main thread does not wake."""


def watch_nodes(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Show reports until Ctrl-C. Raises KubeError if the cluster cannot be read at the start."""
    lines = lines_of(options, colour=has_colour(sys.stdout, environ), compact=True)
    screen = _screen(options)
    following = Following(
        client,
        wanted(options),
        asking(options),
        usage=options.details,
    )
    gc.enable()
    following.start()
    try:
        while True:
            _wait(following)
            following.updated.clear()
            if following.complete:
                screen.show(_shown(following.facts(), lines, options))
                _pause(options.interval)
            elif following.problems:
                raise KubeError(following.problems[0])
    except KeyboardInterrupt:
        return 0
    finally:
        following.stop()


def _screen(options: argparse.Namespace) -> Screen:
    is_for_people = options.output not in FOR_PROGRAMS
    over = sys.stdout.isatty() and is_for_people
    heading = ""
    if is_for_people:
        heading = "{} (Ctrl-C ends)" if over else "\n{}"
    return Screen(sys.stdout, over=over, now=lambda: time.strftime("%Y-%m-%d %H:%M:%S %z"), heading=heading)


def _wait(following: Following) -> None:
    """Wait for a change, or until the last facts are too old."""
    until = time.monotonic() + following.good_for_s
    while not following.updated.wait(min(CTRL_C_S, max(0.0, until - time.monotonic()))):
        if time.monotonic() >= until:
            return


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        time.sleep(min(CTRL_C_S, remaining))


def _shown(facts: ClusterFacts, lines: Lines, options: argparse.Namespace) -> list[str]:
    report = arranged(build(facts), options)
    names = {node.node.name for node in report.nodes}
    missing = [name for name in options.nodes if name not in names]
    if missing:
        note = f"no GPU node is called {', '.join(missing)} now"
        report = replace(report, problems=(*report.problems, note))
    shown = lines(report)
    if shown or options.output in FOR_PROGRAMS:
        return shown
    return [nothing(options)]
