"""Which CDI devices carry the environment of which containers, so that each container gets its own in every order.

Kubelet hands out CDI devices by what a container names: those of a request, or of all requests of a claim. Within a
claim, it keeps the order of the driver's answer, where the device for the whole claim comes last.
"""

from collections.abc import Mapping

from gpuagent.domain.dra.containers.uses import ClaimUses, ContainerUse, Named, Union
from gpuagent.domain.pods.pod import ALL_REQUESTS
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.isolation_layers import LIMITS, NONE

Environments = Mapping[Named, Union | None]
"""What containers name, to the GPUs whose environment its CDI devices carry; None if they carry none."""

WITHOUT_VARIABLES = frozenset({NONE, LIMITS})
"""Isolation drivers that limit nothing by a container's environment."""


def environments(uses: ClaimUses, claim: str) -> Environments:
    """The environments of a claim, and of all claims that are connected with it by containers.

    Raises:
        Refusal: a container would get the environment of another one, or none.
    """
    carried: dict[Named, Union | None] = {}
    connected = uses.connected(claim)
    for name in connected:
        carried |= _of_claim(uses, name)
    for use in uses.containers:
        # A container that waits for another claim is checked when that one is prepared.
        if not use.claims.isdisjoint(connected) and not use.is_waiting:
            _check(use, uses, carried)
    return carried


def _of_claim(uses: ClaimUses, claim: str) -> Environments:
    """What the CDI devices of a claim carry."""
    carried = {named: _common_union(uses, named) for named in uses.names_of(claim)}
    whole = Named(claim, ALL_REQUESTS)
    if whole in uses.by_name and carried[whole] is None:
        # Without one for the whole claim, its containers would get the environments of single requests.
        return dict.fromkeys(carried)
    return carried


def _common_union(uses: ClaimUses, named: Named) -> Union | None:
    """The GPUs of all containers that name this; None if the containers differ.

    Kubelet does not call the driver for a later pod that uses a prepared claim. So without a container, the environment
    is that of a container which names nothing else.
    """
    users = uses.by_name.get(named, ())
    unions = {uses.union(use.named) for use in users}
    if not unions:
        return uses.union([named])
    return unions.pop() if len(unions) == 1 else None


def _check(use: ContainerUse, uses: ClaimUses, carried: Environments) -> None:
    """Check that a container gets its own environment. Raises Refusal."""
    union = uses.union(use.named)
    without = [named for named in use.named if carried[named] is None]
    # A later pod that names this alone would get no limits, and the driver is not asked about it.
    is_unlimited = any(uses.claims[named.claim].layer not in WITHOUT_VARIABLES for named in without)
    has_own = any(carried[named] == union for named in use.named)
    if has_own and not is_unlimited:
        return
    rival = _rival(use, uses)
    claims = ", ".join(sorted(use.claims & rival.claims))
    raise Refusal(
        Reason.MIXED_RESOURCES,
        f"containers {use.owner} and {rival.owner} both use claim {claims}, and differ in what else they use. The "
        "container runtime would mix up their variables: let each container have claims of its own, or let both have "
        "the same ones",
    )


def _rival(use: ContainerUse, uses: ClaimUses) -> ContainerUse:
    """A container that uses one of the claims with other GPUs; its like if there is none."""
    union = uses.union(use.named)
    others = [other for other in uses.containers if not other.claims.isdisjoint(use.claims)]
    differing = [other for other in others if uses.union(other.named) != union]
    return differing[0] if differing else others[0]
