"""Forgets prepared claims that kubelet has forgotten: its state was removed, for example with the node's cluster."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from gpuagent.domain.dra.prepare import has_device_of
from gpuagent.domain.pods.json_values import mapping
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.claim_fields import CLAIM_FIELDS
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome

log = logging.getLogger(__name__)

LOOK_S = 60.0
LOOKS = 4
"""If kubelet's state cannot be read, a claim that is gone at so many looks is forgotten. Kubelet looks each 60 s which
claims it has to unprepare."""
_NOT_FOUND = 404

KubeletClaims = Callable[[], frozenset[str] | None]
"""UIDs of the claims that kubelet has prepared or begun to; None if that is not known."""


class ForgottenClaims(KeyedReconciler[PreparedClaim]):
    """Looks for each claim at the API server.

    Args:
        client: shared with others.
        forget: called with the UID of a claim that is gone.
        kubelet_claims: of kubelet's state.
    """

    def __init__(
        self,
        client: Api,
        forget: Callable[[str], None],
        kubelet_claims: KubeletClaims = lambda: None,
    ) -> None:
        super().__init__("kube-forgotten", Delays(recheck_s=LOOK_S))
        self._client = client
        self._forget = forget
        self._kubelet_claims = kubelet_claims
        self._gone = Counter[str]()

    def key(self, value: PreparedClaim) -> str:
        return value.uid

    def desire(self, values: Iterable[PreparedClaim]) -> None:
        """As every reconciler; looks count only while a claim is desired without a break."""
        desired = {self.key(value): value for value in values}
        super().desire(desired.values())
        for uid in tuple(self._gone):
            if uid not in desired:
                self._gone.pop(uid, None)

    def attempt(self, value: PreparedClaim) -> Outcome:
        if not self._is_gone(value):
            # Only looks in a row count.
            self._gone[value.uid] = 0
            return Outcome.DONE
        self._gone[value.uid] += 1
        if self._unknown_to_kubelet(value) or self._gone[value.uid] >= LOOKS:
            log.warning("Forgot a claim that is gone", extra={"claim": str(value)})
            self._forget(value.uid)
        return Outcome.DONE

    def is_forgotten(self, claim: PreparedClaim) -> bool:
        """Whether the claim is gone at the API server and kubelet does not have it; False if that is not certain."""
        try:
            # The order counts: kubelet begins with no claim that is gone.
            return self._is_gone(claim) and self._unknown_to_kubelet(claim)
        except KubeError as err:
            log.debug("Failed to look for a claim", extra={"claim": str(claim), "error": str(err)})
            return False

    def describe(self, value: PreparedClaim, err: KubeError) -> str:
        return f"claim {value}, which no pod of the node uses, cannot be read: {err}"

    def _unknown_to_kubelet(self, claim: PreparedClaim) -> bool:
        known = self._kubelet_claims()
        return known is not None and claim.uid not in known

    def _is_gone(self, claim: PreparedClaim) -> bool:
        """Whether there is no such claim any more, or it has none of its devices any more."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        try:
            current = self._client.get(path, CLAIM_FIELDS)
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
            return True
        metadata = mapping(current.get("metadata"))
        # A claim of the same name may be another one.
        if metadata.get("uid") != claim.uid:
            return True
        return not has_device_of(current, claim)
