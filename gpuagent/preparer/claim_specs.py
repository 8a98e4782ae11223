"""The CDI devices of a claim, and of the claims that its containers use as well."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.dra.cdi_spec import ALL_DEVICE, CdiDevice, device_names
from gpuagent.domain.dra.containers.environments import WITHOUT_VARIABLES, Environments, environments
from gpuagent.domain.dra.containers.union import is_isolated, merged, of_sizes, sizes, together
from gpuagent.domain.dra.containers.uses import ClaimUses, Named, Union
from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.dra.prepare import ClaimedGpus, grants
from gpuagent.domain.pods.pod import ALL_REQUESTS
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.grant import DeviceAccess, Grant
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State
from gpuagent.isolation.interface import CannotIsolateError, IsolationError, Serving


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """What a container gets.

    Attributes:
        whole: all of it.
        shares: those parts of it that an isolation driver limits.
        gpus: each once, with all that the container has of it.
    """

    whole: Grant
    shares: tuple[Grant, ...]
    gpus: ClaimedGpus


class ContainerGrants:
    """Works out what containers get.

    Args:
        state: of the agent.
        access: how containers get devices.
        drivers: by name.
    """

    def __init__(self, state: State, access: DeviceAccess, drivers: Mapping[str, Serving]) -> None:
        self._state = state
        self._access = access
        self._drivers = drivers

    def of(self, uses: ClaimUses, union: Union) -> ContainerGrant:
        """What a container gets for these GPUs. Raises Refusal and IsolationError."""
        parts = uses.gpus(union)
        gpus = together(parts)
        mode, driver = self._serving(is_limited=is_isolated(parts))
        by_size = sizes(gpus, mode)
        if len(by_size) > 1 and driver not in WITHOUT_VARIABLES:
            raise CannotIsolateError(
                f"a container has GPUs of different sizes, and isolation driver {driver} takes one size for all GPUs "
                "of a container: use them in several containers"
            )
        shares = [self._of_size(of_size, mode, driver) for of_size in by_size if not of_size[0].unlimited]
        whole = [self._of_size(of_size, mode, NONE) for of_size in by_size if of_size[0].unlimited]
        every = [*shares, *whole]
        grant = every[0] if len(every) == 1 else of_sizes(every, self._access)
        return ContainerGrant(grant, tuple(shares), gpus)

    def device_grant(self, gpus: ClaimedGpus) -> Grant:
        """The device nodes of some GPUs, or the CDI devices of others that have these."""
        (grant,) = grants(gpus, Mode.SHARE, self._state.gpus.by_uuid, self._access)
        return grant

    def _serving(self, *, is_limited: bool) -> tuple[Mode, str]:
        """The mode and the isolation driver of a container."""
        if not is_limited:
            return Mode.SHARE, NONE
        mode = layer_mode(self._state)
        return mode, self._state.layer_of(mode).driver

    def _of_size(self, gpus: ClaimedGpus, mode: Mode, driver: str) -> Grant:
        of_resources = grants(gpus, mode, self._state.gpus.by_uuid, self._access)
        return merged([self._drivers[driver].prepare(grant) for grant in of_resources])


@dataclass(frozen=True, slots=True)
class ClaimSpecs:
    """The CDI devices of connected claims.

    Attributes:
        devices: UID of each claim to its CDI devices.
        others: CDI devices of others that containers get as well, by request and device of the prepared claim.
        users: what each container of the prepared claim gets.
    """

    devices: Mapping[str, list[CdiDevice]]
    others: Mapping[tuple[str, str], tuple[str, ...]]
    users: tuple[ContainerGrant, ...]


def claim_specs(claim: PreparedClaim, uses: ClaimUses, container_grants: ContainerGrants) -> ClaimSpecs:
    """The CDI devices of a claim, and of the claims that containers connect with it. Raises Refusal, IsolationError."""
    carried = environments(uses, claim.name)
    granted = _granted(claim, uses, carried, container_grants)
    devices: dict[str, list[CdiDevice]] = {}
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in uses.connected(claim.name):
        connected = uses.claims[name]
        of_claim, names = _devices(connected, carried, granted, container_grants)
        devices[connected.uid] = of_claim
        if connected is claim:
            others = names
    unions = dict.fromkeys(uses.union(use.named) for use in uses.users(claim.name))
    # Without a container, the claim is checked as one that a container has alone.
    users = [granted[union] for union in unions] or [granted[uses.union(uses.names_of(claim.name))]]
    return ClaimSpecs(devices, others, tuple(users))


def _granted(
    claim: PreparedClaim, uses: ClaimUses, carried: Environments, container_grants: ContainerGrants
) -> dict[Union, ContainerGrant]:
    """What each container gets; without combinations of claims that no container uses, or could use."""
    users = [use for named in carried for use in uses.by_name.get(named, ()) if not use.is_waiting]
    users += uses.users(claim.name)
    needed = {uses.union(use.named) for use in users}
    if not uses.users(claim.name):
        needed.add(uses.union(uses.names_of(claim.name)))
    granted = {union: container_grants.of(uses, union) for union in needed}
    for union in set(carried.values()) - needed:
        if union is None:
            continue
        try:
            granted[union] = container_grants.of(uses, union)
        except (Refusal, IsolationError):
            continue  # a container that needs this does not start, because the CDI device is missing
    return granted


def _devices(
    claim: PreparedClaim,
    carried: Environments,
    granted: Mapping[Union, ContainerGrant],
    container_grants: ContainerGrants,
) -> tuple[list[CdiDevice], dict[tuple[str, str], tuple[str, ...]]]:
    """The CDI devices of one claim, and those of others that belong to its devices."""
    names = device_names(claim)
    devices: list[CdiDevice] = []
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    for (request, device), name in names.items():
        gpus = {gpu.uuid: gpu for gpu in claim.gpus if (gpu.request, gpu.device) == (request, device)}
        access = container_grants.device_grant(tuple(gpus.values()))
        others[request, device] = access.cdi_names
        union = carried[Named(claim.name, request)]
        if union is None or union in granted:
            grant = None if union is None else granted[union].whole
            devices.append(CdiDevice(name, access.device_nodes, grant))
    whole = Named(claim.name, ALL_REQUESTS)
    if whole in carried:
        union = carried[whole]
        if union is None or union in granted:
            grant = None if union is None else granted[union].whole
            devices.append(CdiDevice(ALL_DEVICE, (), grant))
    return devices, others
