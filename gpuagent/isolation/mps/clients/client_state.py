"""What is known of the clients of one GPU's daemon, and whether its server still takes new ones: values alone."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from gpuagent.host.cuda_probe import Probed, Verdict

FAULT = "FAULT"
"""What the daemon says of a server after a fatal fault, until the clients of then have ended."""

NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class WedgePolicy:
    """When a server is probed and a hanging daemon ended.

    Attributes:
        fresh_s: a probe that is younger needs no repetition before a container starts.
        again_s: how often a server that hangs is probed.
        quiet_s: how long no container must have started before a daemon is ended. A program that is just making its
            context is not in the list of clients yet.
        kill_s: how long a daemon must hang before it is ended under its clients; None: never.
    """

    fresh_s: float = 60.0
    again_s: float = 30.0
    quiet_s: float = 30.0
    kill_s: float | None = None


DEFAULT_WEDGES = WedgePolicy()


class Cure(Enum):
    """What helps a server that hangs."""

    NONE = "none"
    RESTART = "restart"
    """Its daemon is ended, as no program uses it, and another is started."""
    KILL = "kill"
    """The same, although programs use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """The clients and the server at one moment. Each method returns the state after an event.

    Attributes:
        pids: of the clients.
        is_faulty: the server waits for clients to end after a fatal fault.
        is_suspect: a client has gone since the last probe. If it was killed with work on the GPU, the server may hang.
        probed_at: when the last probe ended.
        hangs_since: since when the server takes no new client; None while it does, as far as is known.
        symptom: what the probe saw then.
        started_at: when a container last started on the GPU.
        unprobed: why the server cannot be probed; empty while it can.
        is_new: the daemon was ended because it hung, and the new one was not probed yet.
        is_doubted: the probe failed on such a new daemon. So it fails for another reason, until it succeeds once.
    """

    pids: frozenset[int] = frozenset()
    is_faulty: bool = False
    is_suspect: bool = False
    probed_at: float = NEVER
    hangs_since: float | None = None
    symptom: str = ""
    started_at: float = NEVER
    unprobed: str = ""
    is_new: bool = False
    is_doubted: bool = False

    def read(self, pids: Iterable[int], statuses: Iterable[str]) -> "ClientState":
        """The daemon has told its clients and the states of its servers."""
        present = frozenset(pids)
        has_lost_one = bool(self.pids - present)
        return replace(
            self,
            pids=present,
            is_faulty=FAULT in statuses,
            is_suspect=self.is_suspect or has_lost_one,
        )

    def probed(self, result: Probed, at: float) -> "ClientState":
        """A probe has ended."""
        if result.verdict is Verdict.UNKNOWN:
            return replace(self, is_suspect=False, unprobed=result.text, probed_at=at)
        known = replace(self, is_suspect=False, unprobed="", probed_at=at)
        if result.verdict is Verdict.SERVED:
            return replace(known, hangs_since=None, symptom="", is_new=False, is_doubted=False)
        if self.is_new or self.is_doubted:
            # Another restart would not help, and containers may be served although the probe is not.
            text = f"{result.text}, also from a new daemon"
            return replace(known, unprobed=text, is_new=False, is_doubted=True)
        since = at if self.hangs_since is None else self.hangs_since
        return replace(known, hangs_since=since, symptom=result.text)

    def started(self, at: float) -> "ClientState":
        """A container starts on the GPU."""
        return replace(self, started_at=at)

    def restarted(self) -> "ClientState":
        """The daemon was ended. What is known of the probe itself stays known."""
        return replace(self.ended(), is_new=True)

    def ended(self) -> "ClientState":
        """The daemon does not run. What is known of its clients and its server is over."""
        return ClientState(
            started_at=self.started_at,
            unprobed=self.unprobed,
            is_new=self.is_new,
            is_doubted=self.is_doubted,
        )

    @property
    def hangs(self) -> bool:
        """Whether the server takes no new client."""
        return self.hangs_since is not None

    def needs_probe(self, at: float, policy: WedgePolicy) -> bool:
        """Whether a probe is due now."""
        if self.is_suspect:
            return True
        # After a fault, the server takes clients again once those of then have ended.
        is_odd = self.hangs or (self.is_faulty and not self.pids)
        return is_odd and at - self.probed_at >= policy.again_s

    def needs_probe_before_start(self, at: float, policy: WedgePolicy) -> bool:
        """Whether a probe is due before a container starts. A client that lives shows that the server works."""
        if self.is_suspect:
            return True
        return not self.pids and not self.hangs and at - self.probed_at >= policy.fresh_s

    def cure(self, at: float, policy: WedgePolicy) -> Cure:
        """What to do about a server that hangs."""
        if self.hangs_since is None:
            return Cure.NONE
        if self.pids:
            is_over = policy.kill_s is not None and at - self.hangs_since >= policy.kill_s
            return Cure.KILL if is_over else Cure.NONE
        is_quiet = at - self.started_at >= policy.quiet_s
        return Cure.RESTART if is_quiet else Cure.NONE

    def problem(self, gpu: str, pods: Iterable[str], *, restarts: bool) -> str | None:
        """Why new containers cannot use the GPU, and what to do; None if they can.

        Args:
            gpu: its name for people.
            pods: names of the pods that hold it.
            restarts: the agent may end the daemon.
        """
        names = ", ".join(sorted(pods)) or "of its clients"
        if self.hangs and self.pids:
            return f"MPS hangs on {gpu}: pods {names} must end ({self.symptom})"
        if self.hangs and not restarts:
            return f"MPS hangs on {gpu} without clients: end its daemon, so that it is started again ({self.symptom})"
        if self.hangs:
            return f"MPS hangs on {gpu}, and its daemon is about to be started again ({self.symptom})"
        if self.is_faulty and self.pids:
            return f"MPS takes no new programs on {gpu} after a fatal fault: pods {names} must end"
        return None
