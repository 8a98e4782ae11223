"""Requests to poll a GPU's health, as a value."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PollRequests:
    """Every request has a number, and a poll serves the requests that came before it began.

    Attributes:
        made: number of the last request.
        begun: of the last one that the poll in progress serves.
        served: of the last one that was served.
        awaited: of the one for whose answer an XID waits; None if none does.
        lost_at: of the one that was made when the GPU was found to be lost.
    """

    made: int = 0
    begun: int = 0
    served: int = 0
    awaited: int | None = None
    lost_at: int = 0

    @property
    def is_open(self) -> bool:
        """Whether a request waits to be served."""
        return self.made > self.served

    @property
    def is_awaited(self) -> bool:
        """Whether an XID waits for the answer of the poll in progress, and posts it itself."""
        return self.awaited is not None and self.begun >= self.awaited

    @property
    def is_outdated(self) -> bool:
        """Whether the GPU was found to be lost after the poll in progress began."""
        return self.begun < self.lost_at

    def another(self) -> "PollRequests":
        """After one more request."""
        return replace(self, made=self.made + 1)

    def another_awaited(self) -> "PollRequests":
        """After one more request, whose answer an XID waits for."""
        number = self.made + 1
        return replace(self, made=number, awaited=number)

    def no_more_awaited(self) -> "PollRequests":
        """After the XID has its answer, or has given up."""
        return replace(self, awaited=None)

    def another_after_loss(self) -> "PollRequests":
        """After the GPU was found to be lost, which only a later poll can end."""
        number = self.made + 1
        return replace(self, made=number, lost_at=number)

    def begin(self) -> "PollRequests":
        """After a poll has begun."""
        return replace(self, begun=self.made)

    def end(self) -> "PollRequests":
        """After the poll in progress has ended."""
        return replace(self, served=self.begun)
