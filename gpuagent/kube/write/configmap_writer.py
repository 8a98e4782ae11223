"""Keeps ConfigMaps as desired."""

from collections.abc import Callable
from typing import Any

from gpuagent.domain.reconcile.configmap import Change, ConfigMapFacts, change
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome

DELAYS = Delays(recheck_s=300.0)
"""The recheck corrects a change by another writer. A watch would show the change at once, but cost every node one
connection for each ConfigMap.
"""
# Reads in a row while another writer comes in between; then it waits as after any failure.
_LOOKS = 3
_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409


class ConfigMapWriter(KeyedReconciler[ConfigMapFacts]):
    """Reads each desired ConfigMap, and writes the difference.

    It leaves a ConfigMap that is no longer desired as it is: to remove one, desire it with ``data`` None.

    Args:
        client: shared with others.
        on_problem: receives the reason why a ConfigMap is not as desired, and None when all are.
        delays: the delays of each ConfigMap.
    """

    def __init__(
        self,
        client: Api,
        on_problem: Callable[[str | None], None] = lambda _: None,
        delays: Delays = DELAYS,
    ) -> None:
        super().__init__("kube-configmaps", delays, on_problem)
        self._client = client

    def key(self, value: ConfigMapFacts) -> tuple[str, str]:
        return value.namespace, value.name

    def attempt(self, value: ConfigMapFacts) -> Outcome:
        for look in range(1, _LOOKS + 1):
            write = change(self._find(value), value)
            if write is None:
                break
            try:
                self._send(write, value)
            except KubeError as err:
                if not _is_outrun(write, err) or look == _LOOKS:
                    raise
            else:
                break
        return Outcome.DONE

    def describe(self, value: ConfigMapFacts, err: KubeError) -> str:
        reason = str(err)
        if err.status == _FORBIDDEN:  # name all required rights at once: each try may lack another one
            reason += f"; the agent needs get, create, patch and delete on configmaps in namespace {value.namespace}"
        if err.status == _CONFLICT:  # the server's words name versions, which differ each time
            reason = "another client writes it again and again at the same time; its managedFields name the client"
        return f"config map {value}: {reason}"

    def _find(self, facts: ConfigMapFacts) -> dict[str, Any] | None:
        try:
            return self._client.get(f"{_collection(facts)}/{facts.name}")
        except KubeError as err:
            # The agent cannot have made a ConfigMap that it may not read.
            unmade = facts.data is None and err.status == _FORBIDDEN
            if err.status != _NOT_FOUND and not unmade:
                raise
            return None

    def _send(self, write: Change, facts: ConfigMapFacts) -> None:
        path = _collection(facts)
        match write.verb:
            case "create":
                self._client.create(path, write.body)
            case "patch":
                self._client.patch(f"{path}/{facts.name}", write.body)
            case "delete":
                self._client.delete(f"{path}/{facts.name}", write.body)


def _is_outrun(write: Change, err: KubeError) -> bool:
    """Whether another writer has changed, made or deleted it since the read. A missing namespace differs."""
    if err.status == _CONFLICT:
        return True
    return err.status == _NOT_FOUND and write.verb != "create"


def _collection(facts: ConfigMapFacts) -> str:
    return f"/api/v1/namespaces/{facts.namespace}/configmaps"
