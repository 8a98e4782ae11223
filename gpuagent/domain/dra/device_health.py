"""The health of devices as kubelet shows it in the status of the pods that have them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health_verdict import GpuHealth
from gpuagent.domain.sharing.claim import ClaimedGpu
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State

Health = tuple[bool | None, str]
"""Of a GPU: whether it is healthy, None if that is not known, and a message."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one device.

    Attributes:
        device: its name in the ResourceSlice.
        healthy: None if it is not known.
        message: why it is not healthy, or a note; may be empty.
    """

    device: str
    healthy: bool | None
    message: str = ""


def device_healths(state: State) -> tuple[DeviceHealth, ...]:
    """The health of every device that a claim can have, in the order of their names; none without mode `dra`."""
    publishes = state.node.mode is Mode.DRA
    if not publishes and not state.claims.prepared:
        return ()
    healths: dict[str, Health] = {}
    members: dict[str, set[str]] = {}
    for uuid, gpu in state.gpus.by_uuid.items():
        name = device_name(gpu)
        members[name] = {uuid}
        healths[uuid] = _health(gpu, state)
    for claimed in _claimed(state):
        uuid = claimed.uuid
        of_device = members.setdefault(claimed.device, set())
        of_device.add(uuid)
        if uuid not in state.gpus.by_uuid:
            healths[uuid] = False, f"GPU {uuid} is not on the node any more"
    devices = []
    for name in sorted(members):
        uuids = sorted(members[name])
        of_gpus = [healths[uuid] for uuid in uuids]
        devices.append(_of_device(name, of_gpus))
    return tuple(devices)


def _claimed(state: State) -> Iterator[ClaimedGpu]:
    for claim in state.claims.prepared.values():
        yield from claim.gpus


def _of_device(name: str, of_gpus: Sequence[Health]) -> DeviceHealth:
    """The health of a device with these GPUs: the worst of theirs, and the messages of all."""
    healths = []
    messages = []
    for healthy, message in of_gpus:
        healths.append(healthy)
        if message:
            messages.append(message)
    return DeviceHealth(name, _worst(healths), "; ".join(messages))


def _worst(healths: list[bool | None]) -> bool | None:
    if False in healths:
        return False
    if None in healths:
        return None
    return True


def _health(gpu: Gpu, state: State) -> Health:
    health = state.health.by_uuid.get(gpu.uuid, GpuHealth())
    has_fault = health.cause is not None and health.healthy_since is None
    is_unasked = gpu.uuid in state.health.unasked
    driver_problem = state.gpus.driver_problem
    cause = state.unhealthy.get(gpu.uuid)
    healthy: bool | None = False
    if gpu.mig:
        message = f"{gpu} is in MIG mode, which claims cannot use"
    elif driver_problem is not None:
        healthy = None
        message = f"{gpu}: NVIDIA driver: {driver_problem}"
    elif health.only_unread or is_unasked:
        healthy = None
        message = f"{gpu}: {cause}"
    elif has_fault:
        message = f"{gpu} is unhealthy: {cause}"
    elif gpu.uuid in state.gpus.fenced:
        message = f"{gpu} is {cause}"
    else:
        healthy = True
        notes = [f"{gpu}: {note}" for note in _notes(health)]
        message = "; ".join(notes)
    return healthy, message


def _notes(health: GpuHealth) -> Iterator[str]:
    if health.cause is not None:
        yield f"healthy again and settling; it was unhealthy: {health.cause}"
    yield from health.notes
