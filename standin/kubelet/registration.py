"""Kubelet's registry of device plugins, in the three forms it has had."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from standin.kubelet.connection import CallError, Connection
from standin.kubelet.node import Endpoint
from standin.kubelet.personality import Registry
from standin.kubelet.state import Registered, State

VERSION = "v1beta1"
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def extended_resource(name: str) -> bool:
    """Whether kubelet takes the name for an extended resource."""
    domain, _, rest = name.partition("/")
    if not rest or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    # The quota name, with "requests." in front, has to be a qualified name too.
    quota = f"requests.{domain}"
    return len(rest) <= 63 and len(quota) <= 253 and bool(_NAME.fullmatch(rest) and _DOMAIN.fullmatch(quota))


class Registration(dp_grpc.RegistrationServicer):
    """Serves ``Register`` and runs a ``ListAndWatch`` for each plugin that registered."""

    def __init__(self, state: State, *, dial_timeout: float = 10.0) -> None:
        self._state = state
        self._dial_timeout = dial_timeout
        self._clients: dict[tuple[str, ...], Connection] = {}
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []

    def Register(self, request: dp.RegisterRequest, context: grpc.ServicerContext) -> dp.Empty:
        """Check, dial, ask for the options, answer; up to 1.24 check, answer, and the rest in background."""
        state, path = self._state, self._state.directory / request.endpoint
        with state.change():
            state.registrations.append(
                Registered(
                    request.resource_name,
                    request.endpoint,
                    request.version,
                    request.options,
                    path.is_socket(),
                    time.monotonic(),
                )
            )
        if state.hooks.never_answer:
            given_up = threading.Event()
            if context.add_callback(given_up.set):
                given_up.wait()
            context.abort(grpc.StatusCode.CANCELLED, "the caller gave up")
        try:
            self._check(request)
            if state.personality.registry is Registry.BACKGROUND:
                self._spawn(lambda: self._connect_later(request))
            else:
                self._connect(request, context)
        except CallError as error:
            state.refuse(request.resource_name, request.endpoint, str(error))
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return dp.Empty()

    def _check(self, request: dp.RegisterRequest) -> None:
        if self._state.hooks.refuse:
            raise CallError(self._state.hooks.refuse)
        if request.version != VERSION:
            raise CallError(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        if not extended_resource(request.resource_name):
            raise CallError(f'the ResourceName "{request.resource_name}" is invalid')

    # 1.25 and later.

    def _connect(self, request: dp.RegisterRequest, context: grpc.ServicerContext) -> None:
        state, resource = self._state, request.resource_name
        by_path = state.personality.registry is Registry.BY_PATH
        connection = self._new(request)
        key = (resource, str(connection.path)) if by_path else (resource,)
        with state.change():
            # Before the dial, even if there is a client: its connection stays open but is not found again.
            self._clients[key] = connection
        try:
            connection.dial(self._dial_timeout)
            try:
                # The call lives no longer than Register itself.
                options = connection.call(connection.stub.GetDevicePluginOptions, dp.Empty(), context.time_remaining())
            except CallError as error:
                raise CallError(f"failed to get device plugin options: {error}") from error
            state.stopping.wait(state.hooks.delay_s)
            self._connected(resource, Endpoint(str(connection.path), connection, options))
        except CallError:
            with state.change():
                # From now on, kubelet does not detect the end of the former client.
                self._clients.pop(key, None)
            raise
        self._spawn(lambda: self._run(resource, key, connection))

    def _connected(self, resource: str, endpoint: Endpoint) -> None:
        state = self._state
        with state.change():
            known: list[Endpoint] = []
            if state.personality.registry is Registry.BY_PATH:
                known = [one for one in state.endpoints.get(resource, ()) if one.stopped_at is None]
                if any(one.path == endpoint.path for one in known):
                    raise CallError(f"device plugin already connected: {endpoint.path}")
            state.endpoints[resource] = [*known, endpoint]

    def _run(self, resource: str, key: tuple[str, ...], connection: Connection) -> None:
        state = self._state
        reason = self._watch(resource, connection)
        with state.change():
            state.end(resource, connection.path.name, reason)
            if state.stopping.is_set():
                return
            # Looked up again: by name this may be a newer plugin than the one whose stream ended.
            client = self._clients.pop(key, None)
            if client is not None:
                self._disconnected(resource, str(client.path))
        if client is not None:
            client.drop()

    def _disconnected(self, resource: str, path: str) -> None:
        state = self._state
        known = state.endpoints.get(resource, [])
        if state.personality.registry is Registry.BY_PATH:
            live = [one for one in known if one.stopped_at is None]
            rest = [one for one in live if one.path != path]
            if rest:  # Another one is promoted, even if it has ended undetected.
                state.endpoints[resource] = rest
                return
        if known:
            state.devices.mark_unhealthy(resource)
            known[-1].stopped_at = state.clock()

    # Up to 1.24.

    def _connect_later(self, request: dp.RegisterRequest) -> None:
        state, resource = self._state, request.resource_name
        connection = self._new(request)
        try:
            connection.dial(self._dial_timeout)
        except CallError as error:
            state.refuse(resource, request.endpoint, str(error))
            return
        endpoint = Endpoint(str(connection.path), connection, request.options)
        with state.change():
            state.endpoints[resource] = [endpoint]
        reason = self._watch(resource, connection)
        with state.change():
            state.end(resource, connection.path.name, reason)
            endpoint.stopped_at = state.clock()
            if not state.stopping.is_set() and state.endpoint(resource) is endpoint:
                state.devices.mark_unhealthy(resource)
        connection.close()

    # All.

    def _new(self, request: dp.RegisterRequest) -> Connection:
        connection = Connection(self._state.directory / request.endpoint)
        with self._state.changed:
            self._connections.append(connection)
            stopping = self._state.stopping.is_set()
        if stopping:
            connection.close()
        return connection

    def _watch(self, resource: str, connection: Connection) -> str:
        state, asked = self._state, time.monotonic()

        def take(message: dp.ListAndWatchResponse) -> None:
            with state.change():
                if state.stopping.is_set():
                    return
                state.receive(resource, connection.path.name, message, asked)

        with state.change():
            state.streams[resource] += 1
        return connection.watch(take)

    def _spawn(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="standin-plugin", daemon=True)
        with self._state.changed:
            self._threads.append(thread)
            thread.start()

    def drop_all(self) -> None:
        """Drop every connection, as the end of the kubelet process does; ``stopping`` is set by now."""
        with self._state.changed:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def join(self) -> None:
        """Wait for the threads of dropped connections."""
        for thread in self._threads:
            thread.join()
