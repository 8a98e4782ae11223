"""The extender protocol of kube-scheduler 1.18 to 1.37: JSON whose keys are the names of the Go fields.

A call with `nodeCacheCapable: true` names nodes, otherwise it carries whole Node objects. 5,000 names are 65 of the
67 KB of a filter call, so they stay bytes. The test for one name searches for it in quotes. 5,000 whole nodes are about
15 MB, so they stay bytes until each is read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from gpuscheduler.core.calls import FilterAnswer

Json = dict[str, Any]

MOST_TWICE = 100
"""Nodes whose reason is in both maps of an answer."""
MOST_REASON = 1024
"""Characters of a reason. It is repeated for thousands of nodes, and may quote what authors of pods wrote."""

MOST_NAME = 253
"""Characters of a node's name, as Kubernetes allows them."""


class ProtocolError(ValueError):
    """The body is not the call; the text says what is wrong with it."""


class NodeNames(Collection[str]):
    """A JSON list of node names, decoded only where all of them are needed. Names have no character to escape."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._names: list[str] | None = None

    def __contains__(self, name: object) -> bool:
        # In quotes, because the name of a node may be a part of another's.
        return isinstance(name, str) and b'"%b"' % name.encode() in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def _decoded(self) -> list[str]:
        if self._names is None:
            try:
                self._names = msgspec.json.decode(self._raw, type=list[str])
            except msgspec.DecodeError as err:
                raise ProtocolError(f"NodeNames: {err}") from err
        return self._names


@dataclass(frozen=True, slots=True)
class FilterCall:
    """Which of the nodes can take the pod? Or, of a call to prioritize them: how well do they suit it?

    Attributes:
        pod: the Pod object.
        names: of the nodes; None if the call carries whole nodes.
        nodes: name to the JSON text of each Node object; empty if the call names nodes.
    """

    pod: Json
    names: NodeNames | None
    nodes: Mapping[str, msgspec.Raw] = field(default_factory=dict)

    @property
    def node_names(self) -> Collection[str]:
        """Names of the nodes, in either form of the call."""
        return self.nodes if self.names is None else self.names


@dataclass(frozen=True, slots=True)
class PreemptCall:
    """Which pods have to go so that the pod fits?

    Attributes:
        pod: the Pod object.
        proposed: node name to the UIDs that kube-scheduler proposes.
        violations: node name to how many disruption budgets the proposed evictions violate.
    """

    pod: Json
    proposed: Mapping[str, Sequence[str]]
    violations: Mapping[str, int]


class BindCall(msgspec.Struct, frozen=True):
    """Bind the pod to the node."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _Named(msgspec.Struct):
    name: str


class _Node(msgspec.Struct):
    metadata: _Named


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _FilterArgs(msgspec.Struct):
    pod: Json = msgspec.field(name="Pod")
    nodes: _NodeList | None = msgspec.field(name="Nodes", default=None)
    names: msgspec.Raw = msgspec.field(name="NodeNames", default_factory=lambda: msgspec.Raw(b"null"))


class _Meta(msgspec.Struct):
    uid: str = ""


class _Victim(msgspec.Struct):
    """A whole pod, or its UID alone."""

    uid: str = msgspec.field(name="UID", default="")
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Victims(msgspec.Struct):
    pods: list[_Victim] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptArgs(msgspec.Struct):
    pod: Json = msgspec.field(name="Pod")
    whole: dict[str, _Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta: dict[str, _Victims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


_FILTER = msgspec.json.Decoder(_FilterArgs)
_NODE = msgspec.json.Decoder(_Node)
_PREEMPT = msgspec.json.Decoder(_PreemptArgs)
_BIND = msgspec.json.Decoder(BindCall)


def filter_call(body: bytes) -> FilterCall:
    """Read ExtenderArgs. Raises ProtocolError."""
    try:
        args = _FILTER.decode(body)
        if args.nodes is not None:
            nodes: dict[str, msgspec.Raw] = {}
            for raw in args.nodes.items or ():
                name = _NODE.decode(raw).metadata.name
                if bytes(nodes.get(name, raw)) != bytes(raw):
                    # The caller could not tell which of them the answer means.
                    raise ProtocolError(f"ExtenderArgs: two different nodes have the name {name[:MOST_NAME]!r}")
                nodes[name] = raw
            return FilterCall(args.pod, None, nodes)
    except (msgspec.DecodeError, RecursionError) as err:
        raise ProtocolError(f"ExtenderArgs: {err}") from err
    names = bytes(args.names)
    if not names.startswith(b"["):
        raise ProtocolError("ExtenderArgs: neither NodeNames nor Nodes is a list")
    return FilterCall(args.pod, NodeNames(names))


def node_object(raw: msgspec.Raw) -> Json:
    """A Node object of a filter call. Raises ProtocolError."""
    try:
        node: Json = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as err:
        raise ProtocolError(f"ExtenderArgs: a node: {err}") from err
    return node


def bind_call(body: bytes) -> BindCall:
    """Read ExtenderBindingArgs. Raises ProtocolError."""
    try:
        return _BIND.decode(body)
    except (msgspec.DecodeError, RecursionError) as err:
        # Any process that reaches the port may send JSON that is nested without end.
        raise ProtocolError(f"ExtenderBindingArgs: {err}") from err


def preempt_call(body: bytes) -> PreemptCall:
    """Read ExtenderPreemptionArgs. Raises ProtocolError."""
    try:
        args = _PREEMPT.decode(body)
    except (msgspec.DecodeError, RecursionError) as err:
        raise ProtocolError(f"ExtenderPreemptionArgs: {err}") from err
    proposed: dict[str, list[str]] = {}
    violations: dict[str, int] = {}
    # kube-scheduler sends whole pods, or their UIDs alone if the extender is `nodeCacheCapable`.
    for by_node in (args.whole, args.meta):
        for node, victims in (by_node or {}).items():
            proposed[node] = [pod.uid or pod.metadata.uid for pod in victims.pods or ()]
            violations[node] = victims.violations
    return PreemptCall(args.pod, proposed, violations)


def filter_result(answer: FilterAnswer, call: FilterCall) -> bytes:
    """ExtenderFilterResult, with whole nodes if the call has them."""
    failed = _bounded(answer.failed)
    unresolvable = _bounded(answer.unresolvable)
    twice = dict(islice(unresolvable.items(), MOST_TWICE))
    nodes = None
    names: Sequence[str] | None = answer.nodes
    if call.names is None:
        nodes = {"items": [call.nodes[name] for name in answer.nodes]}
        names = None
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": names,
            # kube-scheduler before 1.21 does not read the second. A later one prefers it where a node is in both.
            "FailedNodes": {**failed, **twice},
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": answer.error[:MOST_REASON],
        }
    )


def _bounded(reasons: Mapping[str, str]) -> dict[str, str]:
    return {node: reason[:MOST_REASON] for node, reason in reasons.items()}


def error_result(error: str) -> bytes:
    """ExtenderBindingResult, where `error` is empty if the pod is bound; any other result with an error alone."""
    return msgspec.json.encode({"Error": error})


def prioritize_result(scores: Mapping[str, int]) -> bytes:
    """HostPriorityList."""
    return msgspec.json.encode([{"Host": node, "Score": score} for node, score in scores.items()])


def preempt_result(victims: Mapping[str, Sequence[str]], violations: Mapping[str, int]) -> bytes:
    """ExtenderPreemptionResult, which has UIDs in both variants of the protocol."""
    nodes: dict[str, Json] = {}
    for node, uids in victims.items():
        nodes[node] = {
            "Pods": [{"UID": uid} for uid in uids],
            "NumPDBViolations": violations.get(node, 0),
        }
    return msgspec.json.encode({"NodeNameToMetaVictims": nodes})
