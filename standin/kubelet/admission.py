"""Admission of pods and start of containers, as far as devices are concerned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.connection import CallError, Connection
from standin.kubelet.devices import AllocationError, Ask, Slot
from standin.kubelet.pods import Admission, Container, Granted, Pod, StartError, merge
from standin.kubelet.state import State


class Admitter:
    """Admits one pod at a time.

    Args:
        active: UIDs of the pods that are not ended.
        pre_start_timeout: deadline of ``PreStartContainer``; the other calls have none.
    """

    def __init__(self, state: State, active: Callable[[], Collection[str]], pre_start_timeout: float) -> None:
        self._state = state
        self._active = active
        self._pre_start_timeout = pre_start_timeout
        self._one_by_one = threading.Lock()
        # The pod admitted last, ended or not, counts as active until the next one comes.
        self._pending = ""
        self._reusable: dict[str, set[str]] = {}
        # The resource and the question of the last GetPreferredAllocation of this admission.
        self.last_question: tuple[str, Ask] | None = None

    def active(self) -> set[str]:
        """Pods whose devices are not collected."""
        return {*self._active(), self._pending}

    def admit(
        self, pod: Pod, *, numa: Collection[int] | None, running: Collection[str] = (), sources_ready: bool = True
    ) -> Admission:
        """Admit a pod; containers named in ``running`` are skipped, as after a restart of kubelet."""
        with self._one_by_one:
            self._pending = pod.uid
            self._reusable = {}
            self.last_question = None
            try:
                for container, init in pod.all_containers():
                    if sources_ready or container.name not in running:
                        self._allocate_container(pod, container, numa, collect=sources_ready)
                    self._keep_for_reuse(pod, container, init)
            except AllocationError as error:
                text = f"Allocate failed due to {error}, which is unexpected"
                return self._rejected(pod, text, "UnexpectedAdmissionError")
            if short := self._node_lacks(pod):
                return self._rejected(pod, *short)
            return Admission(pod, {one.name: self._granted(pod, one) for one, _ in pod.all_containers()})

    def start(self, pod: Pod, container: Container) -> Granted:
        """Start a container as kubelet does, also at each restart."""
        state = self._state
        missing = False
        for resource in self._shuffled(container.limits):
            with state.change():
                if not state.devices.known(resource) or not container.limits[resource]:
                    continue
                held = state.devices.held.get(Slot(pod.uid, container.name, resource))
                endpoint = state.endpoint(resource)
            if endpoint is None:
                raise StartError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options.pre_start_required and endpoint.connection is not None:
                if held is None:
                    raise StartError(
                        f"no devices found allocated in local cache for pod {pod.uid}, "
                        f"container {container.name}, resource {resource}"
                    )
                request = dp.PreStartContainerRequest(devices_ids=sorted(held.ids))
                call = endpoint.connection.stub.PreStartContainer
                try:
                    endpoint.connection.call(call, request, self._pre_start_timeout)
                except CallError as error:
                    raise StartError(f"device plugin PreStartContainer rpc failed with err: {error}") from error
            missing = missing or held is None
        if missing:  # Admitted before the resource was known.
            try:
                with self._one_by_one:
                    self._allocate_container(pod, container, None, collect=True)
            except AllocationError as error:
                raise StartError(str(error)) from error
        return self._granted(pod, container)

    def _rejected(self, pod: Pod, text: str, reason: str) -> Admission:
        return Admission(pod, {}, f"{self._state.personality.rejection}{text}", reason)

    def _node_lacks(self, pod: Pod) -> tuple[str, str] | None:
        """The node-fit check for resources that the device manager has dropped: absent keys pass, zeros do not."""
        state = self._state
        with state.change():
            for container in pod.lasting():
                for resource, count in container.limits.items():
                    amount = state.node.sampled.get(resource)
                    if amount is not None and not state.devices.known(resource) and count > amount.allocatable:
                        wanted = f"{resource}, requested: {count}, used: 0, capacity: {amount.allocatable}"
                        return f"Node didn't have enough resource: {wanted}", f"OutOf{resource}"
        return None

    def _keep_for_reuse(self, pod: Pod, container: Container, init: bool) -> None:
        with self._state.changed:
            for resource, held in self._state.devices.container(pod.uid, container.name).items():
                pool = self._reusable.setdefault(resource, set())
                if init and not container.restartable:
                    pool |= held.ids
                else:  # Sidecars and app containers keep what they took from the pool.
                    pool -= held.ids

    def _allocate_container(
        self, pod: Pod, container: Container, numa: Collection[int] | None, *, collect: bool
    ) -> None:
        state, active = self._state, self.active()
        for resource in self._shuffled(container.limits):
            with state.change():
                # Not the device manager's business: silently without a device.
                if not state.devices.known(resource):
                    continue
                if collect:
                    state.devices.collect(active)
                collect = False
            slot = Slot(pod.uid, container.name, resource)
            ids = self._choose(slot, container.limits[resource], numa)
            if ids:
                self._allocate(slot, ids)
                with state.change():
                    state.save()

    def _choose(self, slot: Slot, required: int, numa: Collection[int] | None) -> frozenset[str]:
        state = self._state
        reusable = self._reusable.get(slot.resource, set())
        with state.change():
            devices = state.devices
            if numa is not None and state.personality.crashes_on_vanished_device:
                for device in devices.vanished(slot.resource, reusable):
                    state.crash(f"{slot.resource} {device} vanished before the hints for {slot.container}")
            chooser = devices.choose(slot, required, reusable, numa)
            try:
                ask = next(chooser)
            except StopIteration as done:
                return frozenset(done.value)
        try:
            preferred = self._prefer(slot.resource, ask)
        except AllocationError:
            with state.change():
                chooser.close()
            raise
        with state.change():
            try:
                chooser.send(preferred)
            except StopIteration as done:
                return frozenset(done.value)
        raise AssertionError("a chooser asks once")

    def _prefer(self, resource: str, ask: Ask) -> Collection[str]:
        with self._state.changed:
            endpoint = self._state.endpoint(resource)
        if endpoint is None:
            raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
        if not self._state.personality.prefers or not endpoint.options.get_preferred_allocation_available:
            return ()
        request = dp.ContainerPreferredAllocationRequest(
            available_deviceIDs=self._shuffled(ask.available),
            must_include_deviceIDs=self._shuffled(ask.must_include),
            allocation_size=ask.size,
        )
        self.last_question = resource, ask
        try:
            connection = self._usable(resource)
            answer = connection.call(
                connection.stub.GetPreferredAllocation, dp.PreferredAllocationRequest(container_requests=[request])
            )
        except CallError as error:
            raise AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    def _allocate(self, slot: Slot, ids: frozenset[str]) -> None:
        state = self._state
        request = dp.ContainerAllocateRequest(devices_ids=self._shuffled(ids))
        try:
            connection = self._usable(slot.resource)
            answer = connection.call(connection.stub.Allocate, dp.AllocateRequest(container_requests=[request]))
        except CallError as error:
            with state.change():
                state.devices.roll_back(slot)
            raise AllocationError(str(error)) from error
        with state.change():
            if not answer.container_responses:
                state.devices.leak(slot)
                raise AllocationError(f"no containers return in allocation response {answer}")
            if state.personality.crashes_on_vanished_device:
                for device in state.devices.vanished(slot.resource, ids):
                    state.crash(f"{slot.resource} {device} vanished from the list during Allocate")
            state.devices.commit(slot, ids, answer.container_responses[0])

    def _usable(self, resource: str) -> Connection:
        with self._state.changed:
            endpoint = self._state.endpoint(resource)
        if endpoint is None:
            raise CallError(f"unknown Device Plugin {resource}")
        if endpoint.connection is None or endpoint.stopped_at is not None:
            raise CallError(f"endpoint {resource} has been stopped")
        return endpoint.connection

    def _granted(self, pod: Pod, container: Container) -> Granted:
        with self._state.changed:
            held = self._state.devices.container(pod.uid, container.name)
            return merge([(resource, held[resource].ids, held[resource].answer) for resource in self._shuffled(held)])

    def _shuffled(self, names: Collection[str] | Mapping[str, object]) -> list[str]:
        ordered = sorted(names)
        with self._state.changed:
            self._state.rng.shuffle(ordered)
        return ordered
