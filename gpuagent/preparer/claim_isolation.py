"""Has a claim isolated: chooses the driver, and waits until the driver and the GPUs can serve the claim."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.domain.dra.claim_users import check_users, users_of
from gpuagent.domain.dra.containers.uses import claim_uses, unknown_claims
from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.dra.memory_shares import claim_shares, claimed_shares
from gpuagent.domain.dra.prepare import claimed_gpus, has_device, must_isolate, reserved_for
from gpuagent.domain.dra.unusable_gpus import unusable_gpu
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, DeviceStrategy
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import PROMISES, Mode
from gpuagent.domain.state import State
from gpuagent.isolation.interface import CannotIsolateError, IsolationError, Serving, Starting
from gpuagent.preparer import waits
from gpuagent.preparer.call import Call, LatestState
from gpuagent.preparer.claim_specs import ClaimSpecs, ContainerGrants, claim_specs
from gpuagent.preparer.prepared_claims import PreparedClaims

Gpus = tuple[ClaimedGpu, ...]
ReadClaim = Callable[[str, str], Mapping[str, Any]]
"""Reads a ResourceClaim by namespace and name. Raises Refusal: it cannot be read."""
MOST_READ = 16
"""Further claims that are read for one call. A pod may name any number of them."""


@dataclass(frozen=True, slots=True)
class IsolatedClaim:
    """A claim that its GPUs and its isolation driver can serve now.

    Attributes:
        prepared: the claim with its GPUs, as it is once these are held.
        coming: names of further claims with devices of this driver that a container of its pods waits for.
    """

    prepared: PreparedClaim
    coming: frozenset[str]


class ClaimIsolation:
    """Isolates claims.

    Args:
        pool: name of the node's pool.
        drivers: by name.
        strategy: how containers get device nodes.
        latest: the agent's state.
        claims: that are prepared.
        read_claim: whether a further claim of a pod has devices of this driver is known from the claim alone.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        pool: str,
        drivers: Mapping[str, Serving],
        strategy: DeviceStrategy,
        latest: LatestState,
        claims: PreparedClaims,
        read_claim: ReadClaim,
    ) -> None:
        self._pool = pool
        self._drivers = drivers
        self._strategy = strategy
        self._latest = latest
        self._claims = claims
        self._read_claim = read_claim

    def isolated(self, call: Call, claim: Mapping[str, Any]) -> IsolatedClaim:
        """The claim (decoded JSON), as soon as its GPUs and the isolation driver can serve it.

        Raises:
            Refusal: they cannot within the time of the call, or never.
        """
        while True:
            # Anew after each wait, in which the GPUs and their holders may have changed.
            state = self._known_state(call)
            result = self._try_isolate(call, claim, state)
            if isinstance(result, IsolatedClaim):
                return result
            if self._latest.is_over(call):
                raise result
            call.waits_for(result)
            self._latest.wait(waits.RETRY_S)

    def _try_isolate(self, call: Call, claim: Mapping[str, Any], state: State) -> IsolatedClaim | Refusal:
        """The claim, or why it cannot be served yet. Raises Refusal: it never can."""
        gpus = claimed_gpus(claim, self._pool, state.gpus.by_uuid, state.policy.unit)
        used = [gpu for gpu in gpus if not gpu.admin]
        self._claims.check_other_front_end(call.uid, used, state)
        kept = self._claims.kept_by(call.uid)
        unusable = unusable_gpu(claim, gpus, kept, state, of_administrators=call.of_administrators)
        if unusable is not None:
            if unusable.passing:
                return unusable.refusal
            raise unusable.refusal
        try:
            return self._isolate(call, claim, gpus, state)
        except CannotIsolateError as err:
            raise _refusal(err) from err
        except IsolationError as err:
            return _refusal(err)
        except Refusal as refusal:
            if refusal.reason is Reason.NOT_READY:
                return refusal
            raise

    def _known_state(self, call: Call) -> State:
        """The state, once the mode, GPUs, kubelet's allocations and isolation drivers were read."""
        with self._latest.changed:
            while True:
                state = self._latest.state
                # Without the mode, a refusal could not say whether it pays to wait.
                if state is not None and state.has_first_reads and state.node.mode_known:
                    return state
                if self._latest.is_over(call):
                    words = "the agent has not read the node's mode, the GPUs and kubelet's allocations yet"
                    raise Refusal(Reason.NOT_READY, words)
                self._latest.wait(waits.RETRY_S)

    def _isolate(self, call: Call, claim: Mapping[str, Any], gpus: Gpus, state: State) -> IsolatedClaim:
        """Raises IsolationError and Refusal; with `Reason.NOT_READY`, it pays to wait."""
        mode, name = serving_driver(claim, gpus, state)
        prepared = PreparedClaim(
            uid=call.uid,
            namespace=call.namespace,
            name=call.name,
            layer=name,
            gpus=gpus,
        )
        check_users(claim, prepared, self._claims.every, state.pods)
        self._check_one_pod(claim, state.layer_of(mode))
        pods = self._shares_of_users(claim, prepared, state)
        coming = self._coming(call, prepared, state)
        specs = self._specs(claim, prepared, coming, state)
        limits_compute = mode is Mode.CORE_MEM
        for container in specs.users:
            of_container = replace(prepared, gpus=container.gpus)
            shares = claimed_shares(of_container, state.gpus.by_uuid, state.policy.unit, limits_compute=limits_compute)
            # Kubelet names the claim, and no container of it.
            starting = Starting(None, pods, shares=shares)
            for share in container.shares:
                self._drivers[name].verify(share, starting)
        return IsolatedClaim(prepared, coming)

    def _coming(self, call: Call, prepared: PreparedClaim, state: State) -> frozenset[str]:
        """Claims with devices of this driver that a container of the claim's pods waits for."""
        unknown = unknown_claims(prepared, self._claims.every, state.pods.seen)
        coming = set(call.together.intersection(unknown))
        others = [name for name in unknown if name not in coming]
        for name in others[:MOST_READ]:
            with suppress(Refusal):  # a pod may name a claim that is not there
                if has_device(self._read_claim(call.namespace, name)):
                    coming.add(name)
        return frozenset(coming)

    def specs_now(
        self, call: Call, claim: Mapping[str, Any], prepared: PreparedClaim, coming: Collection[str]
    ) -> ClaimSpecs:
        """What the runtime gives to the containers of a claim that is held. Raises Refusal."""
        try:
            return self._specs(claim, prepared, coming, self._known_state(call))
        except IsolationError as err:
            raise _refusal(err) from err

    def _specs(
        self, claim: Mapping[str, Any], prepared: PreparedClaim, coming: Collection[str], state: State
    ) -> ClaimSpecs:
        """What the runtime gives to the containers of a claim, and of those that are connected with it.

        Raises:
            Refusal: the runtime cannot give a container all that it names.
            IsolationError: an isolation driver cannot.
        """
        others = [other for other in self._claims.every if other.uid != prepared.uid]
        uses = claim_uses(prepared, reserved_for(claim), others, state.pods.seen, coming)
        access = DeviceAccess(
            unit=state.policy.unit,
            device_nodes=state.gpus.device_nodes,
            strategy=self._strategy,
            indexes=state.policy.index_for_uuid,
        )
        return claim_specs(prepared, uses, ContainerGrants(state, access, self._drivers))

    @staticmethod
    def _check_one_pod(claim: Mapping[str, Any], layer: Layer) -> None:
        """A driver that limits pods cannot limit several of them together. Raises CannotIsolateError."""
        count = len(reserved_for(claim))
        if layer.limits_pods and count > 1:
            raise CannotIsolateError(
                f"{count} pods have the claim, and isolation driver {layer.driver} limits each pod by itself, so they "
                "would get its memory several times: make a claim for each pod, for example with a "
                "ResourceClaimTemplate"
            )

    def _shares_of_users(self, claim: Mapping[str, Any], prepared: PreparedClaim, state: State) -> dict[str, PodShares]:
        """UID to all shares that the claim's pods have of claims with the same driver, this one included."""
        others = [other for other in self._claims.every if other.uid != prepared.uid]
        of_driver = [other for other in others if other.layer == prepared.layer]
        users = users_of(claim, state.pods.seen)
        shares = claim_shares([*of_driver, prepared], users)
        # A pod that the agent has not seen yet has at least this claim, and its driver has to know of it.
        return {uid: shares.get(uid, PodShares()) for uid in reserved_for(claim)}


def _refusal(err: IsolationError) -> Refusal:
    return Refusal(Reason.ISOLATION, str(err))


def serving_driver(claim: Mapping[str, Any], gpus: Gpus, state: State) -> tuple[Mode, str]:
    """The mode by which a claim's containers are isolated, and the driver.

    Raises:
        IsolationError: the driver does not serve the claim now.
    """
    promised = must_isolate(claim, gpus)
    mode = layer_mode(state)
    layer = state.layer_of(mode)
    shares = [gpu for gpu in gpus if not gpu.unlimited]
    reasons = [layer.left_out[gpu.uuid] for gpu in shares if gpu.uuid in layer.left_out]
    works = layer.keeps(mode) and not reasons
    if not shares:
        return Mode.SHARE, NONE  # whole GPUs and monitors have no limits
    if not promised and not works:
        return Mode.SHARE, NONE  # a share without a promise is isolated only where that is possible
    if works and promised <= PROMISES[mode]:
        return mode, layer.driver
    if state.policy.allow_unisolated:
        return Mode.SHARE, NONE
    problem = layer.problem_in(mode)
    if problem is not None:
        reasons.insert(0, problem)
    names = ", ".join(sorted(promised))
    reasons.append(f"it does not isolate {names}")
    raise IsolationError(f"isolation driver {layer.driver} does not serve the claim now: {reasons[0]}")
