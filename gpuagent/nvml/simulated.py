"""A simulated NVML: it takes the place of the C library *behind* `pynvml`.

The binding's own marshalling, function cache and error classes stay in use, so what runs on a simulated box is what
runs on a real one. See `boxes` for the machines, `Simulator` for the faults, `inject` for faults from elsewhere.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml

from gpuagent.nvml.boxes import Box
from gpuagent.nvml.simulated_calls import DEVICE, INVALID, LOOKUP, SYSTEM, address, point
from gpuagent.nvml.simulated_driver import FaultError, GpuRef, SimulatedDriver, SimulatedGpu, error_code
from gpuagent.nvml.simulated_links import LINKS
from gpuagent.nvml.simulated_socket import FaultSocket, inject
from gpuagent.nvml.simulated_use import USE

__all__ = ["FaultError", "GpuRef", "Simulator", "inject", "install"]

_OF_A_GPU = {**DEVICE, **LINKS, **USE}
_FUNCTIONS = frozenset({*SYSTEM, *_OF_A_GPU, *LOOKUP, "nvmlErrorString"})

_FAULTS: dict[str, dict[str, Any]] = {
    "lose": {"silent": bool},
    "restore": {},
    "hang": {"function": str},
    "unhang": {"function": str},
    "fail": {"function": str},
    "action": {"value": int},
    "remap": {"pending": bool, "failed": bool},
    "throttle": {"thermal": bool, "power": bool},
    "mig": {"enabled": bool},
    "nvlink": {"link": int, "up": bool},
    "fabric": {"ready": bool},
    "driver": {"present": bool},
    "process": {"pid": int, "mib": int | None, "kind": str, "sm": int | None},
    "end": {"pid": int},
    "busy": {"percent": int},
}
"""Faults that answer nothing: methods of the driver, and the types of their arguments."""


class _Function:
    """One C function. An object, as the binding sets `restype` on some."""

    restype: Any = None

    def __init__(self, driver: SimulatedDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def __call__(self, *args: Any) -> Any:
        driver, name = self._driver, self._name
        if name == "nvmlErrorString":
            return f"simulated error {args[0]}".encode()
        gpu: SimulatedGpu | None = None
        if name in _OF_A_GPU:
            gpu = driver.at(address(args[0]))
        elif name in LOOKUP:
            gpu = LOOKUP[name](driver, args[0])
        code = driver.enter(name, gpu)
        if code:
            return code
        with driver.changed:
            if name in SYSTEM:
                return SYSTEM[name](driver, *args)
            if gpu is None:
                return INVALID if name in _OF_A_GPU or name.endswith("Index_v2") else pynvml.NVML_ERROR_NOT_FOUND
            return point(args[1], gpu.address) if name in LOOKUP else _OF_A_GPU[name](driver, gpu, *args[1:])


class _Library:
    """What the binding takes for the loaded library; functions that it lacks are AttributeErrors, as with ctypes."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> _Function:
        if name not in _FUNCTIONS or name in self._driver.box.missing:
            raise AttributeError(name)
        return _Function(self._driver, name)


class Simulator(SimulatedDriver):
    """A box in place of the real driver, with the faults of `SimulatedDriver`; a context manager.

    The methods raise FaultError for what the box does not have.
    """

    def __init__(self, box: Box) -> None:
        super().__init__(box, _FUNCTIONS)
        self._former = _put_library(_Library(self))
        self._socket: FaultSocket | None = None

    def listen(self, path: Path) -> None:
        """Take faults from other processes at the unix socket `path` (see `inject`). Raises OSError."""
        self._socket = FaultSocket(path, self.apply)

    def close(self) -> None:
        """Give the binding its former library back, free what hangs, and stop listening."""
        if self._socket:
            self._socket.close()
            self._socket = None
        self.unhang()
        _put_library(self._former)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def apply(self, fault: dict[str, Any]) -> dict[str, Any]:
        """Inject a fault given as data; the shapes are those of `inject`. Returns what is to be answered.

        Raises:
            FaultError: no such fault, or not for this box.
        """
        given = dict(fault)
        kind = given.pop("fault", None)
        try:
            match kind:
                case "xid":
                    return {"heard_by": self.xid(**_checked(given, code=int, any_waiter=bool))}
                case "ecc":
                    return {"heard_by": self.double_bit_ecc(**_checked(given))}
                case str() if kind in _FAULTS:
                    getattr(self, kind)(**_checked(given, **_FAULTS[kind]))
                case _:
                    raise FaultError(f"unknown fault {kind!r}; known: xid, ecc, {', '.join(_FAULTS)}")
        except TypeError as err:  # an argument missing, or one too many
            raise FaultError(f"fault {kind}: {str(err).partition('.')[2] or err}") from None
        return {}


def install(box: Box) -> Simulator:
    """Put `box` in place of the NVIDIA driver of this process. Undo with `Simulator.close`."""
    return Simulator(box)


def _put_library(library: Any) -> Any:
    """Swap the binding's library; its cached function pointers belong to the former one. Returns the former."""
    with pynvml.libLoadLock:
        former, pynvml.nvmlLib = pynvml.nvmlLib, library
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (its function cache outlives the library)
    return former


def _checked(given: dict[str, Any], **kinds: Any) -> dict[str, Any]:
    """The arguments of a fault, checked."""
    for key, kind in {**kinds, "error": str | int | None, "gpu": str | int | None}.items():
        if key in given and not isinstance(given[key], kind):
            raise FaultError(f"{key}: {given[key]!r} is of the wrong type")
    if isinstance(given.get("error"), str):
        error_code(given["error"])
    return given
