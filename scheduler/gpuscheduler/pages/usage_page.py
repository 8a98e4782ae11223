"""The page /usage: what is free on each GPU, which pods use it or have it reserved, and which pods wait and why."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuscheduler.core.gpu_request import RESOURCES, Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages.pieces import Pieces

PODS_A_PART = 100
"""Waiting pods that are written without a call in between: there may be tens of thousands."""


@dataclass(frozen=True, slots=True)
class _Users:
    """Names of the pods that use a node.

    Attributes:
        pods: those that have GPUs, by minor number of each GPU.
        reserved: those that GPUs are reserved for, likewise.
        unknown: those whose GPUs are not known.
    """

    pods: dict[int, list[str]]
    reserved: dict[int, list[str]]
    unknown: list[str]


async def usage_page(core: Scheduling) -> tuple[bytes, ...]:
    """JSON in pieces that connections share, as the page may be large.

    Calls come in between its parts. So the page shows each node as it is at a moment, not all of them at one.
    """
    pieces = Pieces()
    for part in usage_parts(core):
        pieces.add(part)
        await asyncio.sleep(0)
    return pieces.all()


def usage_parts(core: Scheduling) -> Iterator[bytes]:
    """The page node by node, then the waiting pods, some at a time. Between two parts the core may change."""
    yield b'{"nodes":['
    separator = b""
    for name in sorted(core.usage.nodes):
        node = core.usage.nodes.get(name)
        # It may be gone since the page began.
        if node:
            yield separator + _json(_node(node, core))
            separator = b","
    waiting = _waiting(core)
    yield b'],"waiting":{'
    separator = b""
    for start in range(0, len(waiting), PODS_A_PART):
        part = waiting[start : start + PODS_A_PART]
        reasons = {str(pod.name): core.others.why(pod) for pod in part}
        # Without its braces, as all parts are one object.
        members = _json(reasons)[1:-1]
        yield separator + members
        separator = b","
    yield b"}}"


def _waiting(core: Scheduling) -> list[PodFacts]:
    """The pods that ask for GPUs and have no node, by name, whichever scheduler they name."""
    pods = [pod for pod in core.pods.values() if not pod.node]
    waiting = [pod for pod in pods if pod.request.kind is not RequestKind.NONE]
    waiting += core.others.pods.values()
    waiting.sort(key=lambda pod: pod.name)
    return waiting


def _node(node: NodeUsage, core: Scheduling) -> dict[str, Any]:
    facts = node.facts
    why_not_ready = facts.unready or facts.agent_problem
    users = _users(node, core)
    gpus = []
    for gpu, free in zip(facts.gpus.gpus, node.free, strict=True):
        amounts = _gpu(gpu, free, is_ready=not why_not_ready)
        gpus.append({**amounts, "pods": users.pods[gpu.minor], "reserved": users.reserved[gpu.minor]})
    return {
        "name": facts.name,
        "model": facts.model,
        "mode": facts.mode,
        "ready": not why_not_ready,
        "why_not_ready": why_not_ready,
        "allocatable": {name: units for name, units in facts.allocatable.others if name in RESOURCES},
        "published": not facts.assumed,
        "problem": facts.problem,
        "unit_mib": facts.gpus.unit_mib,
        "gpus": gpus,
        "pods_without_known_gpus": users.unknown,
    }


def _users(node: NodeUsage, core: Scheduling) -> _Users:
    minors_of_node = [gpu.minor for gpu in node.facts.gpus.gpus]
    users = _Users({minor: [] for minor in minors_of_node}, {minor: [] for minor in minors_of_node}, [])
    for uid, use in node.users.items():
        reservation = core.reservations.get(uid)
        pod = core.pods.get(uid) or (reservation and reservation.pod)
        name = str(pod.name) if pod else uid
        # Without a decision, the amounts of a pod are known, and its GPUs are not.
        minors = None if isinstance(use, GpuRequest) else [minor for minor, _ in use]
        # A decision may name a GPU that the node does not have.
        if minors is None or not users.pods.keys() >= set(minors):
            users.unknown.append(name)
            continue
        by_gpu = users.reserved if reservation else users.pods
        for minor in minors:
            by_gpu[minor].append(name)
    return users


def _gpu(gpu: NodeGpu, free: Amounts, *, is_ready: bool) -> dict[str, Any]:
    """The units of a GPU. They are free only if a pod gets them with all that the mode of the node promises."""
    is_offered = gpu.usable and is_ready
    return {
        "minor": gpu.minor,
        "usable": gpu.usable,
        "whole": gpu.whole,
        "memory": gpu.memory,
        "core": gpu.core,
        "free_memory": free.memory if is_offered else 0,
        "free_core": free.core if is_offered else 0,
        "used_memory": gpu.memory - free.memory,
        "used_core": gpu.core - free.core,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
