"""Forgets prepared claims that kubelet has forgotten: its state was removed, for example with the node's cluster."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from gpuagent.domain.pods.json_values import mapping
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome

log = logging.getLogger(__name__)

LOOK_S, LOOKS = 60.0, 4
"""A claim that is gone at so many looks is forgotten. Kubelet looks each 60 s which claims it has to unprepare."""
_NOT_FOUND = 404


class ForgottenClaims(KeyedReconciler[PreparedClaim]):
    """Looks for each claim at the API server.

    Args:
        client: shared with others.
        forget: called with the UID of a claim that is gone.
    """

    def __init__(self, client: Api, forget: Callable[[str], None]) -> None:
        super().__init__("kube-forgotten", Delays(recheck_s=LOOK_S))
        self._client, self._forget = client, forget
        self._gone = Counter[str]()

    def key(self, value: PreparedClaim) -> str:
        return value.uid

    def desire(self, values: Iterable[PreparedClaim]) -> None:
        """As every reconciler; looks count only while a claim is desired without a break."""
        desired = {self.key(value): value for value in values}
        super().desire(desired.values())
        for uid in [*self._gone]:
            if uid not in desired:
                self._gone.pop(uid, None)

    def attempt(self, value: PreparedClaim) -> Outcome:
        self._gone[value.uid] = self._gone[value.uid] + 1 if self._is_gone(value) else 0
        if self._gone[value.uid] >= LOOKS:
            log.warning("Forgot a claim that is gone", extra={"claim": str(value)})
            self._forget(value.uid)
        return Outcome.DONE

    def describe(self, value: PreparedClaim, err: KubeError) -> str:
        return f"claim {value}, which no pod of the node uses, cannot be read: {err}"

    def _is_gone(self, claim: PreparedClaim) -> bool:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        try:
            return mapping(self._client.get(path).get("metadata")).get("uid") != claim.uid
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
            return True
