"""The stand-in kubelet: a faithful small device manager for demo, tests and benchmarks.

It does to a device plugin what the kubelet of the chosen version does, with its bugs: see the modules beside this one.
With an API server it runs pods with ResourceClaims too. Left out: the topology manager's own decisions, and containers.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from standin.kubelet.admission import Admitter
from standin.kubelet.checkpoint import FILE_NAME
from standin.kubelet.connection import Connection, Stream
from standin.kubelet.devices import Slot
from standin.kubelet.dra.dynamic_resources import DynamicResources
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.pod_workers import Cluster, Runtime
from standin.kubelet.listener import Listener
from standin.kubelet.observation import Observation
from standin.kubelet.personality import Personality
from standin.kubelet.podresources import PodResources
from standin.kubelet.pods import Admission, Container, Granted, Pod
from standin.kubelet.registration import Registration
from standin.kubelet.state import Hooks, State


class Kubelet(Observation):
    """A kubelet below ``root``, which gets ``device-plugins/kubelet.sock`` and ``pod-resources/kubelet.sock``.

    Args:
        root: stands for ``/var/lib/kubelet``; keep it short, socket paths end at 107 bytes.
        version: the version to behave like, ``1.18`` to ``1.37``.
        seed: of every random choice.
        clock: drives the grace period and node status; everything else is real time.
        pods: returns the UIDs of active pods; without it ``terminate`` and ``remove`` end pods.
        double_allocation: lose reservations as a real kubelet does when pod-resources is listed during ``Allocate``.
        dial_timeout: how long ``Register`` waits for the plugin's socket.
        pre_start_timeout: deadline of ``PreStartContainer``.
        api: the API server of the pods that this kubelet runs; None for none.
        periods: of the part that runs them.
        runtime: has the containers of a former process of this kubelet; None for none.
        every_pod: run pods without ResourceClaims, too; else tests admit them.

    Attributes:
        hooks: misbehavior of the registry, which may be set at any time.
    """

    def __init__(
        self,
        root: Path,
        version: str = "1.36",
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        pods: Callable[[], Collection[str]] | None = None,
        double_allocation: bool = False,
        dial_timeout: float = 10.0,
        pre_start_timeout: float = 30.0,
        api: Cluster | None = None,
        periods: Periods | None = None,
        runtime: Runtime | None = None,
        every_pod: bool = False,
    ) -> None:
        self.root = root
        self.plugins_dir = root / "device-plugins"
        self.socket = self.plugins_dir / "kubelet.sock"
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self._source = pods
        self._dial_timeout = dial_timeout
        self._numbers = itertools.count(1)
        self._pods: dict[str, tuple[Pod, bool]] = {}
        self._extra: list[Stream] = []
        rng = random.Random(seed)
        super().__init__(State(self.plugins_dir, Personality.of(version), rng, clock, double_allocation))
        self._admitter = Admitter(self._state, self._active, pre_start_timeout)
        self._registration: Registration | None = None
        self._listener: Listener | None = None
        self._pod_listener: Listener | None = None
        self.hooks: Hooks = self._state.hooks
        personality = self._state.personality
        self._claims: DynamicResources | None = None
        if api is not None:
            self._claims = DynamicResources(
                root, api, self, personality, periods or Periods(), rng, runtime=runtime, every_pod=every_pod
            )

    # Life.

    def start(self) -> None:
        """Start: checkpoint, clean-up of the plugin directory, sockets with new inodes."""
        if self._registration is not None:
            raise RuntimeError("this kubelet runs")
        self.plugins_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._state.begin()
        self._registration = Registration(self._state, dial_timeout=self._dial_timeout)
        service = PodResources(self._state, self._known_pods, self._admitter.active)
        self._pod_listener = Listener(self._private(), self.pod_resources_socket, service.add_to)
        self._pod_listener.publish_by_rename()
        listener = self._serve(self._registration)
        # Only now: an inode number that is free may be given again.
        self._clean_up()
        self._publish(listener)
        if self._claims:
            self._claims.start()

    def stop(self) -> None:
        """End as a killed process does: connections drop, socket files and checkpoint stay."""
        registration = self._registration
        if registration is None:
            return
        if self._claims:
            self._claims.stop()
        with self._state.changed:
            self._state.stopping.set()
            for stream in self._extra:
                stream.cancel()
        registration.drop_all()
        self.make_stale()
        if self._pod_listener is not None:
            self._pod_listener.close()
        registration.join()
        for stream in self._extra:
            stream.close()
        self._extra.clear()
        self._registration = self._pod_listener = None

    def restart(self, delay_s: float = 0.0) -> None:
        """Stop, wait and start. Pods stay known: call ``readmit`` when the new process gets to them."""
        self.stop()
        threading.Event().wait(delay_s)
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def claims(self) -> DynamicResources:
        """The part that serves claims. Raises LookupError without an API server."""
        if self._claims is None:
            raise LookupError("this kubelet has no API server")
        return self._claims

    # The registration socket.

    def listen(self) -> None:
        """Serve ``Register`` on a new inode; ``start`` does this, and it undoes ``make_stale``."""
        if self._registration is None or self._listener is not None:
            raise RuntimeError("needs a running kubelet with a stale socket")
        self._publish(self._serve(self._registration))

    def make_stale(self) -> None:
        """Leave ``kubelet.sock`` without a listener; connections go on. Without kubelet, make a dead file."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        elif not self.socket.exists():
            self.plugins_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(self.socket))

    def touch_socket(self) -> None:
        """Change the attributes of ``kubelet.sock``: an event, nothing new."""
        os.utime(self.socket)

    def recreate_socket_event(self) -> None:
        """Delete and create ``kubelet.sock`` with the inode it had: events, nothing new."""
        kept = self._private()
        os.link(self.socket, kept)
        self.socket.unlink()
        kept.rename(self.socket)

    def _serve(self, registration: Registration) -> Listener:
        def add(server: grpc.Server) -> None:
            dp_grpc.add_RegistrationServicer_to_server(registration, server)

        return Listener(self._private(), self.socket, add)

    def _publish(self, listener: Listener) -> None:
        listener.publish()
        self._listener = listener

    def _private(self) -> Path:
        return self.root / ".k" / f"{next(self._numbers)}.sock"

    def _clean_up(self) -> None:
        """Clean the directory as kubelet does at start: remove sockets, or, in old versions, all but the checkpoint."""
        every = self._state.personality.clears_every_file
        for path in self.plugins_dir.iterdir():
            if path.is_socket() or (every and not path.is_dir() and path.name != FILE_NAME):
                # A plugin may remove its own socket at this moment.
                path.unlink(missing_ok=True)

    # The plugins.

    def call(self, resource: str) -> dp_grpc.DevicePluginStub:
        """The raw stub on kubelet's own connection to the newest endpoint, for odd requests."""
        return self._connection(resource).stub

    def open_stream(self, resource: str, *, read: bool = True) -> Stream:
        """Open one more ``ListAndWatch`` on a connection of its own and leave it open until ``stop``.

        With ``read=False`` its reader does not read until ``Stream.read``.
        """
        stream = Stream(self._connection(resource).path)
        self._extra.append(stream)
        if read:
            stream.read()
        return stream

    def close_connection(self, resource: str) -> None:
        """Close kubelet's connection to one plugin, as a failing kubelet might."""
        self._connection(resource).close()

    def _connection(self, resource: str) -> Connection:
        with self._state.changed:
            endpoint = self._state.endpoint(resource)
        if endpoint is None or endpoint.connection is None:
            raise LookupError(f"no plugin registered {resource}")
        return endpoint.connection

    # Pods.

    def receive(self, pod: Pod) -> None:
        """Receive a pod that is admitted next: pod-resources has it from then on."""
        with self._state.change():
            self._pods[pod.uid] = (pod, False)

    def book(self, pod: Pod, container: str, resource: str, ids: Collection[str]) -> None:
        """Record devices of a container that a test, and not this kubelet, requested from the plugin."""
        with self._state.change():
            self._state.devices.commit(Slot(pod.uid, container, resource), ids, dp.ContainerAllocateResponse())

    def admit(self, pod: Pod, *, numa: Collection[int] | None = None) -> Admission:
        """Admit a pod bound to this node; ``numa`` are the nodes the topology manager aligned it to."""
        self.receive(pod)
        return self._settle(self._admitter.admit(pod, numa=numa))

    def readmit(self, running: Collection[tuple[str, str]] | None = None) -> list[Admission]:
        """Admit every active pod again, as after a restart.

        Args:
            running: (UID, container name) the runtime reports; None means all containers but ordinary init ones.
        """
        active = self._active()
        outcome = []
        for pod in [pod for pod, _ in self._known_pods() if pod.uid in active]:
            names = {one.name for one in pod.lasting() if running is None or (pod.uid, one.name) in running}
            again = self._admitter.admit(pod, numa=None, running=names, sources_ready=False)
            outcome.append(self._settle(again))
        return outcome

    def start_container(self, pod: Pod, container: Container | str) -> Granted:
        """Start a container, first time or again.

        Raises:
            StartError: kubelet tries again later, the pod lives on.
        """
        return self._admitter.start(pod, pod.container(container) if isinstance(container, str) else container)

    def terminate(self, pod: Pod) -> None:
        """The pod ended; its devices are freed lazily, at the next allocation or pod-resources ``List``."""
        with self._state.change():
            self._pods[pod.uid] = (pod, True)

    def remove(self, pod: Pod) -> None:
        """The pod was deleted; its devices are freed lazily too."""
        with self._state.change():
            self._pods.pop(pod.uid, None)

    def _settle(self, admission: Admission) -> Admission:
        if not admission:
            self.terminate(admission.pod)
        return admission

    def reserved(self) -> dict[str, set[str]]:
        """By resource, the devices that no pod is offered: others have them, started or not, or they are kept back."""
        with self._state.changed:
            return {resource: set(ids) for resource, ids in self._state.devices.reserved.items()}

    def _active(self) -> set[str]:
        live = None if self._source is None else set(self._source())
        with self._state.changed:
            return {uid for uid, (_, ended) in self._pods.items() if not ended and (live is None or uid in live)}

    def _known_pods(self) -> list[tuple[Pod, bool]]:
        active = self._admitter.active()
        with self._state.changed:
            return [(pod, not ended and uid in active) for uid, (pod, ended) in self._pods.items()]
