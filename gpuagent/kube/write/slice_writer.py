"""Writes the node's ResourceSlices."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping
from gpuagent.domain.reconcile.slice_writes import SliceWrite
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.watch.slice_watch import SLICES
from gpuagent.kube.write.keyed_reconciler import DELAYS, KeyedReconciler, Outcome

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409
_NO_DRY_RUN = {400, _FORBIDDEN, _CONFLICT, 422}
"""A webhook that takes no dry runs, an admission check or a lack of rights, which the writes meet as well or not, a
slice of that name, or a field that this API server does not accept."""


class SliceWriter(KeyedReconciler[SliceWrite]):
    """Sends each write once; the watch of the slices brings the next one.

    Args:
        client: shared with others.
        on_problem: called with why a slice cannot be written; None when all can.
        on_stored: called with the name of each slice that was written, the spec that was sent, and that of the answer.
        on_probed: called with the spec of a dry run, and that of the answer; None if the API server allows none.
    """

    def __init__(
        self,
        client: Api,
        on_problem: Callable[[str | None], None] = lambda _: None,
        on_stored: Callable[[str, Json, Json], None] = lambda *_: None,
        on_probed: Callable[[Json, Json | None], None] = lambda *_: None,
    ) -> None:
        super().__init__("kube-slice", DELAYS, on_problem)
        self._client = client
        self._on_stored = on_stored
        self._on_probed = on_probed

    def key(self, value: SliceWrite) -> str:
        return value.name

    def attempt(self, value: SliceWrite) -> Outcome:
        try:
            match value.verb:
                case "create":
                    self._stored(value, self._client.create(SLICES, value.body))
                case "patch":
                    self._stored(value, self._client.patch(f"{SLICES}/{value.name}", value.body))
                case "delete":
                    self._client.delete(f"{SLICES}/{value.name}", value.body)
                case "probe":
                    self._probe(value)
        except KubeError as err:
            if self._is_outdated(value, err):
                return Outcome.OUTDATED
            raise
        return Outcome.DONE

    def _is_outdated(self, value: SliceWrite, err: KubeError) -> bool:
        """Whether the slice has changed, so that the watch brings what to write now."""
        if value.verb == "probe":
            # It is of no slice. During an upgrade, one of several API servers may not have the API yet.
            return False
        if value.verb == "create":
            return err.status == _CONFLICT and self._is_followed(value)
        return err.status in {_CONFLICT, _NOT_FOUND}

    def _probe(self, value: SliceWrite) -> None:
        stored: Json | None = None
        try:
            answer = self._client.create(f"{SLICES}?dryRun=All", value.body)
        except KubeError as err:
            if err.status not in _NO_DRY_RUN:
                raise
            # Not the error itself: its frames would keep the connection for as long as the record is kept.
            extra = {"reason": str(err)}
            log.warning("Failed to find out which fields of ResourceSlices the API server keeps", extra=extra)
        else:
            stored = mapping(answer.get("spec"))
        self._on_probed(value.body["spec"], stored)

    def _stored(self, value: SliceWrite, answer: Json) -> None:
        self._on_stored(value.name, value.body["spec"], mapping(answer.get("spec")))

    def _is_followed(self, value: SliceWrite) -> bool:
        """Whether the slice that is in the way is of this node and driver, so that the watch shows it."""
        stored = self._client.get(f"{SLICES}/{value.name}")
        spec = mapping(stored.get("spec"))
        desired = value.body["spec"]
        is_of_driver: bool = spec.get("driver") == desired["driver"]
        is_of_node: bool = spec.get("nodeName") == desired["nodeName"]
        return is_of_driver and is_of_node

    def describe(self, value: SliceWrite, err: KubeError) -> str:
        reason = str(err)
        if err.status == _FORBIDDEN:
            reason += "; the agent needs get, list, watch, create, patch and delete on resourceslices"
        elif err.status == _CONFLICT:
            reason += "; it is of another node or driver: delete it"
        return f"resource slice {value.name}: {reason}"
