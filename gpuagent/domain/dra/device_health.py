"""The health of devices as kubelet shows it in the status of the pods that have them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health import GpuHealth
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
    if state.node.mode is not Mode.DRA and not state.claims.prepared:
        return ()
    gpus = state.gpus.by_uuid
    healths = {uuid: _health(gpu, state) for uuid, gpu in gpus.items()}
    members = {device_name(gpu): {uuid} for uuid, gpu in gpus.items()}
    for claim in state.claims.prepared.values():
        for claimed in claim.gpus:
            members.setdefault(claimed.device, set()).add(claimed.uuid)
            if claimed.uuid not in gpus:
                healths[claimed.uuid] = False, f"GPU {claimed.uuid} is not on the node any more"
    return tuple(_of_device(name, members[name], healths) for name in sorted(members))


def _of_device(name: str, uuids: set[str], healths: Mapping[str, Health]) -> DeviceHealth:
    """The health of a device with these GPUs: the worst of theirs, and the messages of all."""
    of_gpus = [healths[uuid] for uuid in sorted(uuids)]
    messages = "; ".join(message for _, message in of_gpus if message)
    return DeviceHealth(name, _worst([healthy for healthy, _ in of_gpus]), messages)


def _worst(healths: list[bool | None]) -> bool | None:
    if False in healths:
        return False
    return None if None in healths else True


def _health(gpu: Gpu, state: State) -> Health:
    health = state.health.by_uuid.get(gpu.uuid, GpuHealth())
    name = f"GPU {gpu.index} ({gpu.uuid})"
    if gpu.mig:
        return False, f"{name} is in MIG mode, which claims cannot use"
    if state.gpus.driver_problem is not None:
        return None, f"{name}: NVIDIA driver: {state.gpus.driver_problem}"
    if health.only_unread or gpu.uuid in state.health.unasked:
        return None, f"{name}: {state.unhealthy[gpu.uuid]}"
    if health.cause is not None and health.healthy_since is None:
        return False, f"{name} is unhealthy: {state.unhealthy[gpu.uuid]}"
    if gpu.uuid in state.gpus.fenced:
        return False, f"{name} is {state.unhealthy[gpu.uuid]}"
    notes = [f"{name}: {note}" for note in _notes(health)]
    return True, "; ".join(notes)


def _notes(health: GpuHealth) -> Iterator[str]:
    if health.cause is not None:
        yield f"healthy again and settling; it was unhealthy: {health.cause}"
    yield from health.notes
