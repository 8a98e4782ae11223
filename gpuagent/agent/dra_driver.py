"""When the agent is a driver for Dynamic Resource Allocation: in mode dra, and as long as claims are prepared."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuagent.agent.start_gate import StartGate
from gpuagent.domain import events as ev
from gpuagent.domain.dra.unprepared import may_be_unprepared
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State
from gpuagent.kubelet.dra.plugin import DraPlugin
from gpuagent.kubelet.dra.servicer import DraServicer
from gpuagent.system.inotify import DirectoryWatch
from gpuagent.system.printable import error_words

REGISTER_S = 15.0
"""How long kubelet may take to find the DRA driver's socket; it looks each second."""


class DraDriver:
    """Starts and stops the driver's sockets as the state demands.

    The driver serves in mode dra, and as long as claims are prepared. Once it has served on the node, it also serves
    while pods with claims are there, after a restart of the agent too.

    Args:
        kubelet_dir: kubelet's own folder.
        records: folder with the records of prepared claims; it is there once the driver has served on the node.
        make_servicer: makes what answers kubelet's calls.
        records_changed: called when another agent has written a record.
        post: takes an event at once.
        clock: monotonic seconds.
        gate: closed when the agent stops.
        is_possible: whether the agent has an API server. Without one, it cannot read claims.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        kubelet_dir: Path,
        records: Path,
        make_servicer: Callable[[], DraServicer],
        records_changed: Callable[[], None],
        post: Callable[[ev.Event], None],
        clock: Callable[[], float],
        gate: StartGate,
        is_possible: bool,
    ) -> None:
        self._kubelet_dir = kubelet_dir
        self._records = records
        self._make_servicer = make_servicer
        self._records_changed = records_changed
        self._post = post
        self._clock = clock
        self._gate = gate
        self._is_possible = is_possible
        self._plugin: DraPlugin | None = None
        self._records_watch: DirectoryWatch | None = None
        self._began = 0.0

    def follow(self, state: State) -> None:
        """Be a driver while the mode says so, and until the last claim is unprepared."""
        if not self._is_possible:
            return
        with self._gate.passing() as may_start:
            if may_start:
                self._follow(state)

    def _follow(self, state: State) -> None:
        must_serve = state.node.mode is Mode.DRA or bool(state.claims.prepared)
        if not self._plugin:
            # Kubelet cannot end a pod whose claim it began to prepare, unless the driver is there.
            if must_serve or (may_be_unprepared(state) and self._records.is_dir()):
                self._start(state.claims.registration_problem)
            return
        if not must_serve and not may_be_unprepared(state):
            self.stop()
            self._post(ev.DraStopped(self._clock()))
            return
        # Kubelet looks for the socket by itself. If it does not find it, nothing but its silence shows that.
        is_silent = not state.claims.registered and state.claims.registration_problem is None
        if is_silent and self._clock() >= self._began + REGISTER_S:
            why = f"it has not asked for the driver; is {self._kubelet_dir}/plugins_registry kubelet's?"
            self._post_registered(why)

    def _start(self, known_problem: str | None) -> None:
        with suppress(OSError):  # it is reported when a claim is written
            self._records.mkdir(parents=True, exist_ok=True)
        plugin = DraPlugin(
            self._kubelet_dir,
            self._make_servicer(),
            notified=self._post_registered,
            superseded=lambda newer: self._post(ev.DraSuperseded(newer, self._clock())),
        )
        try:
            plugin.start()
        except OSError as err:
            plugin.stop()
            problem = error_words(err)
            # It is tried again after each event, and must not be one itself each time.
            if problem != known_problem:
                self._post_registered(problem)
            return
        self._plugin = plugin
        self._began = self._clock()
        self._records_watch = DirectoryWatch(self._records, self._records_changed, name="claims-watch")
        self._records_watch.start()

    def _post_registered(self, problem: str | None) -> None:
        self._post(ev.DraRegistered(problem, self._clock()))

    def stop(self) -> None:
        """Let calls in progress end, then deregister."""
        if self._plugin and self._records_watch:
            self._records_watch.stop()
            self._plugin.stop()
            self._plugin = None
