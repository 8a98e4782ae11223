"""Keeps the agent's fields of its Node up to date."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.reconcile.desired_node import DesiredNode, NodePatch, node_patches
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api
from gpuagent.kube.api.timestamp import rfc3339
from gpuagent.kube.watch.trim import trim_node
from gpuagent.kube.write.keyed_reconciler import DELAYS, Delays, KeyedReconciler, Outcome

_FORBIDDEN = 403
_CONFLICT = 409
# An observation older than the agent's own write is a delayed watch event. After this time it counts anyway.
_STALE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Difference:
    """One part of the Node that differs from what is desired. The Node is empty before the first observation."""

    part: str
    node: Mapping[str, Any]
    desired: DesiredNode


class NodeWriter(KeyedReconciler[_Difference]):
    """Stores the desired and the observed Node, and patches each part that differs.

    It writes nothing before the first ``observe``, and again after every observed drift (kubelet resets a node's status
    when the node is created again).

    Args:
        client: shared with others.
        node_name: the Node that is written.
        on_problem: receives the reason why a part of the Node cannot be written, and None when all can be.
        wall: seconds since the epoch, for times in objects.
        delays: the delays of each part.
    """

    def __init__(
        self,
        client: Api,
        node_name: str,
        on_problem: Callable[[str | None], None] = lambda _: None,
        *,
        wall: Callable[[], float] = time.time,
        delays: Delays = DELAYS,
    ) -> None:
        super().__init__("kube-write", delays, on_problem)
        self._client = client
        self._path = f"/api/v1/nodes/{node_name}"
        self._wall = wall
        self._desired_node = DesiredNode()
        self._node: Mapping[str, Any] = {}
        self._wrote_at = -_STALE_S

    def set_desired(
        self,
        labels: Mapping[str, str | None],
        capacity: Mapping[str, str],
        condition: Mapping[str, str] | None,
        no_taint: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Replace the desired Node; DesiredNode describes the arguments."""
        condition = None if condition is None else dict(condition)
        desired = DesiredNode(dict(labels), dict(capacity), condition, no_taint, dict(annotations or {}))
        with self._wake:
            if desired != self._desired_node:
                self._desired_node = desired
                self._compare()

    def observe(self, node: Mapping[str, Any]) -> None:
        """Take the Node as the API server has it now (a NodeSeen's ``node``)."""
        with self._wake:
            if time.monotonic() - self._wrote_at > _STALE_S or not _is_older(node, self._node):
                self._node = node
                self._compare()

    def key(self, value: _Difference) -> str:
        return value.part

    def attempt(self, value: _Difference) -> Outcome:
        if not value.node:
            return Outcome.OUTDATED
        patch = _patches(value.node, value.desired, rfc3339(self._wall()))[value.part]
        path = f"{self._path}/{patch.subresource}".rstrip("/")
        # The status has lists with keys, such as its conditions: a merge patch would replace those of kubelet.
        content_type = STRATEGIC_MERGE_PATCH if patch.subresource else MERGE_PATCH
        try:
            answer = self._client.patch(path, patch.body, content_type)
        except KubeError as err:
            if err.status == _CONFLICT:
                return Outcome.OUTDATED
            raise
        with self._wake:
            self._wrote_at = time.monotonic()
            # The watch may have shown a later version before the answer to this patch arrived.
            if _uid(answer) == _uid(self._node) and not _is_older(answer, self._node):
                self._node = trim_node(answer)
            self._compare()
        return Outcome.DONE

    def describe(self, value: _Difference, err: KubeError) -> str:
        # Name all required rights at once: each part may lack another one.
        rights = "; the agent needs patch on nodes and on nodes/status" if err.status == _FORBIDDEN else ""
        return f"node {value.part} cannot be written: {err}{rights}"

    def _compare(self) -> None:
        node = self._node
        desired = self._desired_node
        self.desire(_Difference(part, node, desired) for part in _patches(node, desired))


def _patches(node: Mapping[str, Any], desired: DesiredNode, now: str = "") -> Mapping[str, NodePatch]:
    return {patch.part: patch for patch in node_patches(node, desired, now)}


def _uid(node: Mapping[str, Any]) -> str:
    metadata = node.get("metadata", {})
    return str(metadata.get("uid", ""))


def _is_older(node: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``node`` is an earlier state of the same object; versions are ordered numbers (KEP-5504)."""
    if _uid(node) != _uid(other):
        return False
    version = _version(node)
    other_version = _version(other)
    are_numbers = version.isdigit() and other_version.isdigit()
    return are_numbers and int(version) < int(other_version)


def _version(node: Mapping[str, Any]) -> str:
    metadata = node.get("metadata", {})
    return str(metadata.get("resourceVersion", ""))
