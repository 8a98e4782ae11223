"""PreStartContainer: identify the container for certain, and verify its isolation."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress

from gpuagent.allocator.allocator_state import AllocatorState, View
from gpuagent.allocator.kubelet_allocations import KubeletAllocations
from gpuagent.allocator.old_kubelets import OldKubelets
from gpuagent.domain.deviceplugin.device_ids import granted, locate
from gpuagent.domain.deviceplugin.start_checks import Start, check_start
from gpuagent.domain.pods.exchange import by_units
from gpuagent.domain.pods.holdings import Recorded, given_by_another, holder
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.refusal import Reason, Refusal, refusals_name
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.isolation.interface import Isolation, IsolationError

log = logging.getLogger(__name__)

READ_S = 5.0
"""How long to wait for kubelet's allocations."""


class PreStart:
    """Answers PreStartContainer."""

    def __init__(
        self,
        state: AllocatorState,
        kubelet: KubeletAllocations,
        isolation: Mapping[str, Isolation],
        strategy: DeviceStrategy,
        old: OldKubelets,
    ) -> None:
        self._state, self._kubelet, self._isolation, self._strategy = state, kubelet, isolation, strategy
        self._old = old

    def prestart(self, resource: str, ids: Collection[str]) -> ContainerRef | None:
        """The container that `ids` belong to, from kubelet's allocations, with its isolation verified.

        None where kubelet does not list it: an ordinary init container whose devices no later container reuses.

        Raises:
            Refusal: the container breaks a promise of the mode, or its isolation is not ready. Kubelet retries.
        """
        state, picked = self._state, frozenset(ids)
        state.view()  # waits for the first pods
        state.wait(lambda snap: snap.holdings_known or (bool(snap.kubelet) and not self._old.active), READ_S)
        if given_by_another(picked):
            read = self._kubelet.read(timeout_s=READ_S)
            owner = holder(resource, picked, read.holdings if read else ())
            extra = {"resource": resource, "container": str(owner)}
            log.info("Let a container of another plugin start again", extra=extra)
            return owner
        view = state.view()
        snap, units = view.snap, self._old.units(resource, picked) if self._old.active else picked
        at = locate(resource, units, snap)
        start = Start(resource, units, at, snap, lambda: state.granted_after(resource, units))
        owner = self._checked_owner(start, picked, view)
        log.info("Verified container", extra={"resource": resource, "units": len(units), "container": str(owner)})
        # Prefer the stored grant: the isolation driver of the mode may have changed since.
        share = state.granted(resource, units) or granted(resource, at, snap, self._strategy)
        with refusals_name(owner.pod if owner else None):
            try:
                self._isolation[view.driver_of(share)].verify(share, owner)
            except IsolationError as err:
                raise Refusal(Reason.ISOLATION, f"{resource}: {err}") from err
        return owner

    def _checked_owner(self, start: Start, picked: frozenset[str], view: View) -> ContainerRef | None:
        """The container, after a check of the mode's promises. Reads kubelet's allocations again if they may be old."""
        owner, recorded = self._known_owner(start, view), view.snap.recorded
        if owner:
            with suppress(Refusal):  # allocations read during the pod's admission are incomplete
                check_start(start, recorded)
                return owner
        if read := self._kubelet.read(timeout_s=READ_S):
            owner = owner or holder(start.resource, picked, read.holdings)
            holdings, checkpoint, _ = by_units(read.holdings, read.checkpoint)
            recorded = Recorded(holdings, checkpoint, view.snap.pods, view.snap.units)
        with refusals_name(owner.pod if owner else None):
            check_start(start, recorded)
        return owner

    @staticmethod
    def _known_owner(start: Start, view: View) -> ContainerRef | None:
        """The container by kubelet's allocations as last read, unless the ids were allocated again since."""
        later = [one for one in view.tracker.recent if one.at >= view.snap.holdings_at]
        if [one for one in later if not one.ids.isdisjoint(start.ids)]:
            return None
        owners = (h.owner for h in view.snap.holdings if h.resource == start.resource and h.ids == start.ids)
        # An entry of the checkpoint alone has no pod name: the list may be from just before it had the container.
        return next((owner for owner in owners if owner.pod.namespace), None)
