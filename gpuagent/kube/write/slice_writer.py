"""Writes the node's ResourceSlice."""

from collections.abc import Callable

from gpuagent.domain.reconcile.resource_slice import SliceWrite, slice_name
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.watch.slice_watch import SLICES
from gpuagent.kube.write.keyed_reconciler import DELAYS, KeyedReconciler, Outcome

_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class SliceWriter(KeyedReconciler[SliceWrite]):
    """Sends each write once; the watch of the slice brings the next one.

    Args:
        client: shared with others.
        node_name: whose slice.
        on_problem: called with why the slice cannot be written; None when it can.
    """

    def __init__(self, client: Api, node_name: str, on_problem: Callable[[str | None], None] = lambda _: None) -> None:
        super().__init__("kube-slice", DELAYS, on_problem)
        self._client, self._name = client, slice_name(node_name)

    def key(self, value: SliceWrite) -> str:  # noqa: ARG002 (there is one slice)
        return self._name

    def attempt(self, value: SliceWrite) -> Outcome:
        try:
            match value.verb:
                case "create":
                    self._client.create(SLICES, value.body)
                case "patch":
                    self._client.patch(f"{SLICES}/{self._name}", value.body)
                case "delete":
                    self._client.delete(f"{SLICES}/{self._name}", value.body)
        except KubeError as err:
            if err.status == _CONFLICT or (err.status == _NOT_FOUND and value.verb != "create"):
                return Outcome.OUTDATED
            raise
        return Outcome.DONE

    def describe(self, value: SliceWrite, err: KubeError) -> str:  # noqa: ARG002
        reason = str(err)
        if err.status == _FORBIDDEN:
            reason += "; the agent needs get, list, watch, create, patch and delete on resourceslices"
        return f"resource slice {self._name}: {reason}"
