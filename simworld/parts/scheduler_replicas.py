"""Two replicas of gpuscheduler, from its composition root on, each beside a kube-scheduler of its own.

Each replica runs the product's `App` on a simulated event loop: its server, its extender's routes, its API client with
the HTTP library under it, its watches, its lease and its writers. Only sockets and threads are replaced.
"""

import json
import logging
import random
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

from gpuagent.kube.api.access import Access
from gpuscheduler import app as product
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.scheduler_settings import SchedulerSettings
from simworld.history import History
from simworld.parts.kube_scheduler import NAME, KubeScheduler
from simworld.parts.placements import Placements
from simworld.runtime.api_connections import ApiEnd, open_api
from simworld.runtime.event_loop import Delays, Listener, Loopback, SimulatedLoop, SimulatedTransport, run_loop
from simworld.runtime.http import Pipe, Response, SimulatedApi
from simworld.runtime.kernel import Process, kernel
from standin.api.handler import Target
from standin.api.objects import Json

CALL_S = 30.0
"""How long kube-scheduler waits for its extender, as the chart configures it."""
API_S = 5.0
"""How long a process that is cut off waits for an answer of the API server."""
RESTART_S = 1.0
OTHERS_KNOW_S = 30.0
"""How long the next leader may be behind: longer than it takes to gain the lease."""


class Strike:
    """A fault that comes when something happens, and not at a time.

    Attributes:
        point: what has to happen, such as ``binding asked``.
        countdown: how often it has to happen.
    """

    def __init__(self, point: str, countdown: int, what: str, seconds: float) -> None:
        self.point = point
        self.countdown = countdown
        self.what = what
        self.seconds = seconds


class Replica:
    """A pod of two containers: kube-scheduler and extender. Each may end alone.

    Attributes:
        host_name: of the pod.
        clock_wrong_by_s: what the wall clock of its machine is ahead.
        held_until: until when the pod has no way to the API server.
        watches_held_until: until when the extender gets no events.
        stalled_until: until when its processes stand still.
        app: the extender that runs, or that ran last.
    """

    def __init__(self, host_name: str, api: SimulatedApi, chance: random.Random, owner: "SchedulerReplicas") -> None:
        self.host_name = host_name
        self.held_until = 0.0
        self.clock_wrong_by_s = 0.0
        self.watches_held_until = 0.0
        self.stalled_until = 0.0
        self.app: product.App | None = None
        self._api = api
        self._chance = chance
        self._owner = owner
        self._watch_lag = Delays(chance, 0.01, 3.0, 0.01)
        self._request_lag = Delays(chance, 0.006, 2.0, 0.01)
        self._starts = 0
        self._loops: list[SimulatedLoop] = []
        """Also those of former processes: what is collected would run its finally blocks."""
        self._kube_scheduler = Process(f"{host_name} kube-scheduler", host=self, alive=False)
        self._extender = Process(f"{host_name} extender", host=self, alive=False)

    @property
    def leads(self) -> bool:
        """Whether the extender counts its kube-scheduler as the leader."""
        return self.app is not None and self.app._leading.is_set()  # noqa: SLF001 (what the process knows)

    @property
    def knows_of_changes(self) -> bool:
        """Whether nothing keeps changes of the cluster from the extender for now."""
        return kernel().now >= max(self.held_until, self.watches_held_until, self.stalled_until)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_extender()
        self.start_kube_scheduler()

    def kill(self) -> None:
        # A kube-scheduler whose own task comes here ends as the last.
        kernel().end(self._extender)
        kernel().end(self._kube_scheduler)

    def start_extender(self) -> None:
        if self._extender.alive:
            return
        self._extender = Process(f"{self.host_name} extender", host=self)
        kernel().spawn(self._run_extender, self._extender.name, self._extender)

    def kill_extender(self) -> None:
        kernel().end(self._extender)

    def start_kube_scheduler(self) -> None:
        if self._kube_scheduler.alive:
            return
        self._starts += 1
        self._kube_scheduler = Process(f"{self.host_name} kube-scheduler", host=self)
        kernel().spawn(self._run_kube_scheduler, self._kube_scheduler.name, self._kube_scheduler)

    def kill_kube_scheduler(self) -> None:
        kernel().end(self._kube_scheduler)

    def _run_kube_scheduler(self) -> None:
        process = self._kube_scheduler
        scheduler = KubeScheduler(
            f"{self.host_name}_{self._starts}",
            self._api,
            self._chance,
            self._call,
            self._reach,
            partial(self._owner.happened, "reserved", self),
        )
        scheduler.run()
        self._owner.history.note(self.host_name, "its kube-scheduler has lost the lease, and starts again")

        def start_again() -> None:
            kernel().sleep(RESTART_S)
            self.start_kube_scheduler()

        kernel().spawn(start_again, "kubelet restarts it", self._owner.process)
        kernel().end(process)

    def _run_extender(self) -> None:
        loop = SimulatedLoop(self, self._rest)
        self._loops.append(loop)
        settings = SchedulerSettings(listen=("127.0.0.1", 9446), http_address=None, scheduler_name=frozenset({NAME}))

        async def main() -> None:
            self.app = product.App(settings)
            await self.app.run()

        run_loop(loop, main, self._extender)

    def _rest(self) -> None:
        """Stand still as long as the pod does."""
        while self.stalled_until > kernel().now:
            kernel().sleep(self.stalled_until - kernel().now)

    # -- the network of the extender's loop -----------------------------------------------------------------------

    def open(self, transport: SimulatedTransport, _host: str, _port: int) -> ApiEnd:
        """Connect to the API server. Raises ConnectionRefusedError."""
        return open_api(self._api, transport, self, self._api_called)

    def delay_s(self) -> float:
        return self._watch_lag.draw()

    def request_s(self) -> float:
        return max(self._request_lag.draw(), self.held_until - kernel().now)

    def _api_called(self, when: str, target: Target, body: Json) -> None:
        if target.spoken == "pods/binding":
            if when == "done":
                self._owner.placements.bound(target.key, body, self.host_name)
            self._owner.happened(f"binding {when}", self)
        elif target.spoken == "pods" and COMMIT_ANNOTATION in _annotations(body):
            self._owner.happened(f"commit {when}", self)

    # -- kube-scheduler's connections -----------------------------------------------------------------------------

    def _reach(self) -> bool:
        """Wait for the way to the API server; whether it answers."""
        self._rest()
        kernel().sleep(self._request_lag.draw())
        if self.held_until > kernel().now or not self._api.answering.is_set():
            kernel().sleep(API_S)
        self._rest()
        return self.held_until <= kernel().now and not self._api.is_away

    def _call(self, verb: str, body: Json) -> Any:  # noqa: ANN401 (each verb has its own answer)
        """Call the extender beside it. Raises OSError."""
        loop = self._loops[-1] if self._loops else None
        if loop is None or not self._extender.alive:
            raise ConnectionRefusedError
        pipe = Pipe(kernel().process)
        data = json.dumps(body).encode()
        transport = loop.accept(_Caller(pipe), Loopback())
        head = f"POST /{verb} HTTP/1.1\r\nHost: extender\r\nContent-Length: {len(data)}\r\n\r\n"
        transport.arrive(head.encode() + data)

        def hang_up() -> None:
            transport.peer_closed()

        kernel().process.at_end.append(hang_up)
        try:
            response = Response(pipe, CALL_S)
            answer = json.loads(b"".join(response.stream()))
        finally:
            kernel().process.at_end.remove(hang_up)
            pipe.end()
            transport.peer_closed()
        self._rest()
        return answer


class _Caller:
    """kube-scheduler's end of a connection to its extender."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def receive(self, data: bytes) -> None:
        if not self._pipe.ended:
            self._pipe.write(data)

    def client_closed(self) -> None:
        self._pipe.end()


def _annotations(body: Json) -> Json:
    annotations: Json = (body.get("metadata") or {}).get("annotations") or {}
    return annotations


class SchedulerReplicas:
    """All replicas, and the faults that strike them at a moment.

    Attributes:
        history: of the world.
        placements: what they have bound.
        replicas: they themselves.
    """

    def __init__(self, api: SimulatedApi, history: History, seed: int, count: int) -> None:
        self.history = history
        self.placements = Placements(api, history)
        self.process = Process("kubelet of the schedulers")
        chance = random.Random(f"{seed}/replicas")
        self.replicas = [Replica(f"{NAME}-{number + 1}", api, chance, self) for number in range(count)]
        self._strikes: list[Strike] = []
        _replace_edges(api)

    def start(self) -> None:
        for replica in self.replicas:
            replica.held_until = 0.0
            replica.watches_held_until = 0.0
            replica.stalled_until = 0.0
            replica.start()
        self._strikes = []

    def leading_core(self) -> Scheduling | None:
        """What decides in the replica that leads; None while there is none, or while it hears nothing of changes."""
        for replica in self.replicas:
            if replica.app is not None and replica.leads and replica.knows_of_changes:
                return replica.app._core  # noqa: SLF001 (what the process knows)
        return None

    def strike_now(self, which: int, what: str, seconds: float) -> None:
        """Have a fault come to a replica now."""
        replica = self.replicas[which % len(self.replicas)]
        self.history.note(replica.host_name, f"{what} for {seconds:g} s")
        self._act(what, replica, seconds)

    def strike(self, point: str, countdown: int, what: str, seconds: float) -> None:
        """Have a fault come when something has happened so often."""
        self._strikes.append(Strike(point, countdown, what, seconds))

    def happened(self, point: str, replica: Replica) -> None:
        """Let faults come that wait for this."""
        for strike in list(self._strikes):
            if strike.point != point:
                continue
            strike.countdown -= 1
            if strike.countdown <= 0:
                self._strikes.remove(strike)
                self.history.note(replica.host_name, f"{point}: {strike.what} for {strike.seconds:g} s")
                self._act(strike.what, replica, strike.seconds)

    def _act(self, what: str, replica: Replica, seconds: float) -> None:
        match what:
            case "kill_both":
                self._later(seconds, replica.start)
                replica.kill()
            case "kill_extender":
                self._later(seconds, replica.start_extender)
                replica.kill_extender()
            case "kill_kube_scheduler":
                self._later(seconds, replica.start_kube_scheduler)
                replica.kill_kube_scheduler()
            case "stall":
                replica.stalled_until = max(replica.stalled_until, kernel().now + seconds)
            case "delay_watches":
                replica.watches_held_until = max(replica.watches_held_until, kernel().now + seconds)
            case "kill_before_others_know":
                for other in self.replicas:
                    if other is not replica:
                        self._act("delay_watches", other, OTHERS_KNOW_S)
                self._act("kill_both", replica, seconds)
            case "cut":
                replica.held_until = max(replica.held_until, kernel().now + seconds)
            case _:
                raise ValueError(what)

    def _later(self, seconds: float, act: Any) -> None:  # noqa: ANN401 (any function)
        def wait_and_act() -> None:
            kernel().sleep(seconds)
            act()

        kernel().spawn(wait_and_act, "later", self.process)


def _replace_edges(api: SimulatedApi) -> None:
    """Replace what the composition root takes of the machine."""
    vars(product)["access"] = lambda _: Access(api.url, None, lambda: "")
    vars(product)["listen"] = lambda *_: Listener()
    vars(product)["socket"] = SimpleNamespace(gethostname=_host_name, socket=socket.socket)
    for name in ("gpuscheduler", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _host_name() -> str:
    replica: Any = kernel().process.host
    name: str = replica.host_name
    return name
