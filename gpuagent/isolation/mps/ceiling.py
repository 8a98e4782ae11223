"""The ceiling of a GPU's servers: how much one program may have, whatever its environment says. Values alone.

The caps of a container are variables of its environment, which its programs can clear or raise. The ceiling is on the
server's side: the largest share that a container on the GPU has. Where all shares are equal, it is each one's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.sharing.gpu_share import NO_SHARE, GpuShare

RECENT_S = 60.0
"""How long a container that starts counts in any case: kubelet's allocations show it some seconds later."""


@dataclass(frozen=True, slots=True)
class Held:
    """What containers have of a GPU through MPS.

    Attributes:
        whole: all of the GPU.
        largest: the largest share of a container; no share if none has one, None if that is not known.
    """

    whole: GpuShare = NO_SHARE
    largest: GpuShare | None = None


@dataclass(frozen=True, slots=True)
class RecentStarts:
    """The largest share among the containers that have just started."""

    largest: GpuShare = NO_SHARE
    until: float = float("-inf")

    def at(self, at: float) -> GpuShare:
        """The share now."""
        return self.largest if at < self.until else NO_SHARE

    def started(self, share: GpuShare, at: float) -> "RecentStarts":
        """A container starts."""
        return RecentStarts(self.at(at).or_more(share), at + RECENT_S)


def ceiling(held: Held, recent: GpuShare, in_force: GpuShare) -> GpuShare:
    """What a program may have from now on.

    Args:
        held: by containers.
        recent: the largest share among those that have just started.
        in_force: what a program may have now.
    """
    if held.largest is None:
        # A container that is not known may have all that it has now.
        return in_force.or_more(recent)
    largest = held.largest.or_more(recent)
    # Without containers, there is nothing to keep apart.
    return in_force if largest == NO_SHARE else largest


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """One limit of a daemon and its servers, as the daemon has told it. `whole` stands for no limit.

    Attributes:
        whole: all of the GPU.
        slack: by how much the daemon's answer may be rounded down.
        default: of servers that begin later.
        asked: what the agent has asked this daemon for; None for nothing yet.
        servers: PID of each server that was asked since, to its limit.
    """

    whole: int
    slack: int
    default: int
    asked: int | None = None
    servers: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_missing(self) -> bool:
        """Whether the daemon was asked for a limit and has none."""
        return self.asked is not None and self.asked < self.whole <= self.default

    @property
    def highest(self) -> int:
        """The most that a program may have at servers that begin later, as far as it is known."""
        if self.asked is not None:
            return self.asked
        return min(self.default + self.slack, self.whole)

    @property
    def lowest(self) -> int:
        """The least that a program may have at one of the servers."""
        return min([self.default, *self.servers.values()])

    def is_below(self, amount: int) -> bool:
        """Whether a program may get less than that."""
        return self.lowest + self.slack < amount

    def needs(self, wanted: int) -> bool:
        """Whether the daemon has to be asked for `wanted`. What it does not lower is not asked for again."""
        if self.asked is None:
            # Its servers may have other limits than the default, as an agent left them that ended between two commands.
            return min(wanted, self.default) < self.whole
        return wanted != self.asked or self.is_below(wanted)

    def asked_for(self, wanted: int, default: int | None) -> "LimitInForce":
        """The daemon was asked for `wanted`, and has `default` now. Its servers still have what they had."""
        in_force = self.whole if default is None else default
        return replace(self, asked=wanted, default=in_force, servers={})

    def with_server(self, server: int, limit: int) -> "LimitInForce":
        """A server was asked, and has this limit now."""
        return replace(self, servers={**self.servers, server: limit})

    def without_ended(self, listed: Iterable[int]) -> "LimitInForce":
        """Forget servers that are not in the list, as those that have ended are not.

        The list may have been read before a server began. So one that gives too little stays known: no container
        starts until the servers were listed and asked again.
        """
        present = frozenset(listed)
        kept = {server: limit for server, limit in self.servers.items() if server in present or self._is_too_low(limit)}
        return replace(self, servers=kept)

    def _is_too_low(self, limit: int) -> bool:
        return self.asked is not None and limit + self.slack < self.asked
