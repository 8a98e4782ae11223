"""An Allocate that kubelet asked nobody about: which units there are to exchange its ids for."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gpuagent.domain.admission import Candidate, beginning
from gpuagent.domain.claims import Claims
from gpuagent.domain.exchange import Exchanged


@dataclass(frozen=True, slots=True)
class Pick:
    """Ids that kubelet picked for one container.

    Attributes:
        exchanged: those whose units stay: they are asked for again, or were an init container's of the same pod.
        offered: units to choose from for all of them, those that stay among them.
    """

    exchanged: Exchanged
    offered: frozenset[str]


def pick(resource: str, picked: frozenset[str], going_on: Collection[Candidate], claims: Claims) -> Pick:
    """What is known of the ids. `going_on` are containers that may be asking, of pods whose admission has begun."""
    known = {device_id: claims.exchanged[device_id] for device_id in picked if device_id in claims.exchanged}
    own = frozenset[str]().union(*(candidate.given for candidate in going_on))
    others = going_on or claims.ledger.awaiting_partner(resource, claims.now)
    given = claims.given(resource, frozenset(known.values())) if len(known) == len(picked) and not others else None
    again = given and len(given.ids) == len(picked) and not any(beginning(resource, len(picked), claims))
    stay = known if again else {device_id: unit for device_id, unit in known.items() if unit in own}
    # The others were of pods that have ended: kubelet frees all of a pod at once.
    freed = replace(claims, offered=frozenset(known.values()).difference(stay.values()))
    held = frozenset[str]().union(*(claim.ids for claim in freed.standing))
    blocks = claims.snapshot.lists.get(resource, ())
    healthy = (claims.snapshot.blocks[resource, *block.key] for block in blocks if block.healthy)
    return Pick(stay, frozenset[str]().union(*healthy).difference(held).union(stay.values()))


def paired(picked: Iterable[str], chosen: Iterable[str], stay: Exchanged) -> Exchanged:
    """What each of `picked` is exchanged for, when `chosen` are the units in the order to be given."""
    given = set(stay.values())
    new = (unit for unit in chosen if unit not in given)
    return {**stay, **dict(zip(sorted(set(picked) - stay.keys()), new, strict=True))}
