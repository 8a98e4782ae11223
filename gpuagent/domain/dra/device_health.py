"""The health of devices as kubelet shows it in the status of the pods that have them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health import GpuHealth
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State

Health = list[tuple[bool | None, str]]
"""Of each GPU of a device."""


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
    gpus = {gpu.uuid: _health(gpu, state) for gpu in state.gpus.by_uuid.values()}
    devices = {device_name(gpu): {gpu.uuid} for gpu in state.gpus.by_uuid.values()}
    for claim in state.claims.prepared.values():
        for one in claim.gpus:
            devices.setdefault(one.device, set()).add(one.uuid)
    found = {
        name: [gpus.get(uuid, (False, f"GPU {uuid} is not on the node any more")) for uuid in sorted(uuids)]
        for name, uuids in devices.items()
    }
    return tuple(DeviceHealth(name, _worst(found[name]), _words(found[name])) for name in sorted(found))


def _worst(members: Health) -> bool | None:
    healths = [healthy for healthy, _ in members]
    return False if False in healths else None if None in healths else True


def _words(members: Health) -> str:
    return "; ".join(message for _, message in members if message)


def _health(gpu: Gpu, state: State) -> tuple[bool | None, str]:
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
    return True, "; ".join(f"{name}: {note}" for note in _notes(health))


def _notes(health: GpuHealth) -> Iterator[str]:
    if health.cause is not None:
        yield f"healthy again and settling; it was unhealthy: {health.cause}"
    yield from health.notes
