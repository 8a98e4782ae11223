"""One resource's plugin socket and its registration with kubelet, kept alive for as long as the agent runs.

    WAIT_SOCK ──► SERVING ──► REGISTERING ──► CONNECTED ──► TEARDOWN ──┐
        ▲                          │ refused, silent: back-off ▲       │
        └──────────────────────────┴───────────────────────────┴───────┘

Only an open ListAndWatch stream on the current socket proves a registration; the answer to Register does not. Every
incarnation has a socket path of its own, and old streams end before a new one registers. No other protocol works on
every kubelet from 1.18 to 1.37.
"""

import enum
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from gpuagent.allocator.allocator_state import KubeletProcess
from gpuagent.kubelet.deviceplugin.servicer import Servicer
from gpuagent.kubelet.rpc_errors import bind, call_error
from gpuagent.kubelet.sockets import accepts, is_socket
from gpuagent.system.backoff import Backoff
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

SOCKET_PREFIX = "gpuagent-"
WORKERS = 16
REGISTER_DEADLINE_S = 15.0
STREAM_DEADLINE_S = 5.0
"""From a successful Register to the first ListAndWatch; kubelets up to 1.24 dial only after they answered."""
SETTLE_S = 0.2
"""Triggers within this time count as one: a restart of kubelet fires several together."""
SAME_KUBELET_PAUSE_S = 1.0
"""Pause before registering again with the same kubelet, which must first detect the end of the old stream."""
POLL_S = 1.0
FRESH_POLL_S = 0.02
CONNECTED_POLL_S = 5.0
"""While connected: the directory watch and the stream's end act at once, and this poll covers what they miss."""
WAIT_NOTED_S = 5.0


class Stage(enum.StrEnum):
    """Where an endpoint stands; value of the registration metric's label."""

    WAIT_SOCK = "waiting for kubelet"
    SERVING = "serving"
    REGISTERING = "registering"
    CONNECTED = "connected"
    TEARDOWN = "tearing down"


class Endpoint:
    """Serves and registers one resource; every method is safe from any thread."""

    def __init__(
        self,
        resource: str,
        directory: Path,
        make_servicer: Callable[[Callable[[], None]], Servicer],
        changed: Callable[["Endpoint"], None],
    ) -> None:
        self.resource = resource
        self.stage = Stage.WAIT_SOCK
        self.problem: str | None = None
        self.waits_for = ""
        self.registrations = 0
        self.kubelet: KubeletProcess | None = None
        self._directory = directory
        self._kubelet_socket = directory / "kubelet.sock"
        self._make_servicer = make_servicer
        self._changed = changed
        self._wake = threading.Condition()
        self._nudged = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"endpoint {resource}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin_stop(self) -> None:
        self._stopping = True
        self.nudge()

    def join(self, timeout_s: float) -> None:
        """Wait until the socket is gone; harmless if the endpoint was never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def nudge(self) -> None:
        """Check the state again, as a file in the directory or a stream may have changed."""
        with self._wake:
            self._nudged = True
            self._wake.notify_all()

    # -- the state machine -----------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(first_s=1.0, limit_s=30.0)
        while not self._stopping:
            self._enter(Stage.WAIT_SOCK)
            kubelet = self._wait_for_kubelet()
            if kubelet is None:
                return
            self.kubelet = kubelet
            try:
                connected = self._incarnation(kubelet)
            except Exception as err:  # nothing may end this thread: the resource would be gone for good
                if not isinstance(err, OSError):
                    log.exception("Failed to serve an endpoint", extra={"resource": self.resource})
                connected = False
                self._note(f"kubelet cannot be served: {error_words(err)}")
            if connected:
                backoff.reset()
            else:
                self._pause(backoff.next_s(), until_kubelet_is_not=kubelet)

    def _incarnation(self, kubelet: KubeletProcess) -> bool:
        """One socket from bind to unlink; True if kubelet was connected to it."""
        instance = uuid.uuid4().hex[:8]
        path = self._directory / f"{SOCKET_PREFIX}{_short(self.resource)}-{instance}.sock"
        server, servicer = self._serve(path)
        connected = False
        try:
            self._enter(Stage.REGISTERING)
            if self._register(path, servicer) and self._wait_for_stream(servicer):
                connected = True
                self.registrations += 1
                self._note(None)
                self._enter(Stage.CONNECTED)
                self._stay_connected(path, kubelet, servicer)
        finally:
            self._enter(Stage.TEARDOWN)
            servicer.close_streams()
            server.stop(grace=0).wait(2)
            path.unlink(missing_ok=True)
        if not self._stopping and self._kubelet() == kubelet:
            self._pause(SAME_KUBELET_PAUSE_S, until_kubelet_is_not=kubelet)
        return connected

    def _serve(self, path: Path) -> tuple[grpc.Server, Servicer]:
        self._enter(Stage.SERVING)
        servicer = self._make_servicer(self.nudge)
        # Requests carry every free id: so there is no limit on the size of a request.
        options = [("grpc.max_receive_message_length", -1)]
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix=f"rpc {self.resource}")
        server = grpc.server(pool, options=options)
        pb_grpc.add_DevicePluginServicer_to_server(servicer, server)
        bind(server, path)
        server.start()
        return server, servicer

    def _register(self, path: Path, servicer: Servicer) -> bool:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=path.name, resource_name=self.resource, options=servicer.options
        )
        why_not = self._why_not_registered(request)
        if why_not and not self._stopping:
            self._note(f"kubelet did not register {self.resource}: {why_not}")
        return not why_not

    def _why_not_registered(self, request: pb.RegisterRequest) -> str:
        """Call Register; empty if kubelet took it."""
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(f"unix:{self._kubelet_socket}", options=options) as channel:
            call = pb_grpc.RegistrationStub(channel).Register.future(request, timeout=REGISTER_DEADLINE_S)
            call.add_done_callback(lambda _: self.nudge())
            # gRPC's own timer may be late: nothing is left to it.
            if not self._wait(call.done, REGISTER_DEADLINE_S):
                call.cancel()
                return f"no answer within {REGISTER_DEADLINE_S:g} s"
            error = call.exception()
        if isinstance(error, grpc.RpcError):
            return call_error(error, self._kubelet_socket, REGISTER_DEADLINE_S)
        return ""

    def _wait_for_stream(self, servicer: Servicer) -> bool:
        if self._wait(lambda: servicer.followed, STREAM_DEADLINE_S):
            return True
        if not self._stopping:
            self._note(f"kubelet accepted {self.resource} but did not ask for its devices")
        return False

    def _stay_connected(self, path: Path, kubelet: KubeletProcess, servicer: Servicer) -> None:
        def loss() -> str | None:
            return self._loss(path, kubelet, servicer)

        while not self._stopping and loss() is None:
            self._wait(lambda: loss() is not None, CONNECTED_POLL_S, poll_s=CONNECTED_POLL_S)
        if not self._stopping:
            log.info("Lost registration", extra={"resource": self.resource, "cause": loss()})
            self._enter(Stage.TEARDOWN)
            # Further signs of the same restart come within this time.
            self._wait(lambda: False, SETTLE_S)

    def _loss(self, path: Path, kubelet: KubeletProcess, servicer: Servicer) -> str | None:
        """Why kubelet is no longer connected; None if it is."""
        if not servicer.followed:
            return "the list stream ended"
        latest = self._kubelet()
        # Not by the time of change, which a chmod of the socket changes too. No socket is no sign of another kubelet.
        if latest is not None and latest[:2] != kubelet[:2]:
            return "kubelet.sock was replaced"
        if not is_socket(path):
            return "the agent's socket file has gone"
        return None

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wait_for_kubelet(self) -> KubeletProcess | None:
        """The kubelet whose socket accepts connections; None when stopping."""
        fresh_until = 0.0
        seen = None
        began = time.monotonic()
        while not self._stopping:
            inode = self._kubelet()
            if inode is not None and accepts(self._kubelet_socket):
                self.waits_for = ""
                return inode
            if inode != seen:  # a socket that was just bound may not listen yet: check at short intervals at first
                seen = inode
                fresh_until = time.monotonic() + POLL_S
            is_fresh = inode is not None and time.monotonic() < fresh_until
            words = "no process listens on" if inode else "there is no"
            self.waits_for = f"{words} {self._kubelet_socket}"
            if time.monotonic() - began >= WAIT_NOTED_S:  # a normal restart of kubelet is not logged
                self._note(self.waits_for)
            pause_s = FRESH_POLL_S if is_fresh else POLL_S
            self._wait(lambda known=inode: self._kubelet() != known, pause_s)  # type: ignore[misc]
        return None

    def _kubelet(self) -> KubeletProcess | None:
        try:
            status = self._kubelet_socket.stat()
        except OSError:
            return None
        # The next file often gets the freed inode number: the time of change distinguishes the two.
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def _pause(self, seconds: float, *, until_kubelet_is_not: KubeletProcess) -> None:
        def is_new() -> bool:
            return self._kubelet() not in (None, until_kubelet_is_not)

        self._wait(is_new, seconds)

    def _wait(self, ready: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> bool:
        """Wait for `ready()`, checked on every nudge; False on timeout or when stopping."""
        end = time.monotonic() + timeout_s
        with self._wake:
            while not self._stopping:
                # Before the check: a nudge that comes during it must not be lost.
                self._nudged = False
                if ready():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                if not self._nudged:
                    self._wake.wait(min(left, poll_s))
        return False

    def _enter(self, stage: Stage) -> None:
        if stage is not self.stage:
            self.stage = stage
            log.debug("Changed stage of an endpoint", extra={"resource": self.resource, "stage": stage.value})
            self._changed(self)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem = problem
            if problem is None:
                log.info("Registered", extra={"resource": self.resource})
            self._changed(self)


def sweep(directory: Path) -> list[Path]:
    """Remove sockets that a former run left behind (no process listens on them); returns the removed paths."""
    removed = []
    for path in directory.glob(f"{SOCKET_PREFIX}*.sock"):
        # An agent that still runs removes its own.
        if is_socket(path) and not accepts(path):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _short(resource: str) -> str:
    return resource.rpartition("/")[2]
