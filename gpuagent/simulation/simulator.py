"""A simulated NVML: it takes the place of the C library *behind* `pynvml`.

The binding's own marshaling, function cache and error classes stay in use. So a simulated box runs the same code as a
real one. See `boxes` for the machines, `Simulator` for the faults, `inject` for faults from elsewhere.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml

from gpuagent.simulation.boxes import Box
from gpuagent.simulation.devices.device_memory import CgroupSource
from gpuagent.simulation.devices.device_socket import DeviceSocket
from gpuagent.simulation.driver import FaultError, GpuRef, SimulatedDriver, SimulatedGpu, error_code
from gpuagent.simulation.fault_socket import FaultSocket, inject
from gpuagent.simulation.limit_calls import LIMITS
from gpuagent.simulation.limit_faults import LimitedDriver
from gpuagent.simulation.link_calls import LINKS
from gpuagent.simulation.nvml_calls import DEVICE, INVALID, LOOKUP, SYSTEM, address, point
from gpuagent.simulation.usage_calls import USE

__all__ = ["CgroupSource", "FaultError", "GpuRef", "Simulator", "inject", "install"]

_OF_A_GPU = {**DEVICE, **LINKS, **USE, **LIMITS}
_FUNCTIONS = frozenset({*SYSTEM, *_OF_A_GPU, *LOOKUP, "nvmlErrorString"})

FAULTS: dict[str, dict[str, Any]] = {
    "lose": {"silent": bool},
    "restore": {},
    "hang": {"function": str},
    "unhang": {"function": str},
    "fail": {"function": str},
    "action": {"value": int},
    "remap": {"pending": bool, "failed": bool},
    "throttle": {"thermal": bool, "power": bool},
    "mig": {"enabled": bool},
    "odd": {"what": str, "value": str | int | None},
    "nvlink": {"link": int, "up": bool},
    "fabric": {"ready": bool},
    "driver": {"present": bool},
    "process": {"pid": int, "mib": int | None, "kind": str, "sm": int | None},
    "end": {"pid": int},
    "busy": {"percent": int},
    "limits": {"backend": str, "seed": int, "reused": int},
    "alloc": {"pid": int, "mib": int, "kind": str, "creator": int | None},
    "hook": {"path": str, "limit": str | None, "request": str | None},
    "dmem_files": {"path": str, "present": bool},
    "persistence": {"enabled": bool},
    "reset": {},
}
"""Faults without an answer: methods of the driver, and the types of their arguments."""
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a number",
    int | None: "a number or null",
    str: "a text",
    str | None: "a text or null",
    "gpu": "an index, a UUID or null",
    "error": "the name or number of an NVML error, or null",
}
"""The permitted values of a field of that name or type, in words for people."""
_MOST = {"percent": 100, "sm": 100, "reused": 100}
"""The largest number for a field; `MOST_NUMBER` for any other."""
MOST_NUMBER = 2**31 - 1
"""What a signed C integer can hold."""


Fields = dict[str, Any]
"""A fault as data."""


class _Function:
    """One C function. An object, as the binding sets `restype` on some."""

    restype: Any = None

    def __init__(self, driver: SimulatedDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def __call__(self, *args: Any) -> Any:
        driver = self._driver
        name = self._name
        if name == "nvmlErrorString":
            return f"simulated error {args[0]}".encode()
        gpu: SimulatedGpu | None = None
        if name in _OF_A_GPU:
            gpu = driver.at(address(args[0]))
        elif name in LOOKUP:
            gpu = LOOKUP[name](driver, args[0])
        # A call that hangs or fails does so whatever its arguments are.
        code = driver.enter(name, gpu)
        if code:
            return code
        with driver.changed:
            if name in SYSTEM:
                return SYSTEM[name](driver, *args)
            if gpu is None:
                has_bad_argument = name in _OF_A_GPU or name.endswith("Index_v2")
                return INVALID if has_bad_argument else pynvml.NVML_ERROR_NOT_FOUND
            if name in LOOKUP:
                return point(args[1], gpu.address)
            return _OF_A_GPU[name](driver, gpu, *args[1:])


class _Library:
    """Stands for the loaded library in the binding; functions that it lacks are AttributeErrors, as with ctypes."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> _Function:
        if name not in _FUNCTIONS or name in self._driver.box.missing:
            raise AttributeError(name)
        return _Function(self._driver, name)


class Simulator(LimitedDriver):
    """A box in place of the real driver, with the faults of `LimitedDriver`; a context manager.

    The methods raise FaultError for GPUs and links that the box does not have.
    """

    def __init__(self, box: Box, cgroups: CgroupSource | None = None) -> None:
        super().__init__(box, _FUNCTIONS, cgroups or CgroupSource())
        self._former = _put_library(_Library(self))
        self._socket: FaultSocket | None = None
        self._devices: DeviceSocket | None = None

    def listen(self, path: Path) -> None:
        """Take faults from other processes at the unix socket `path` (see `inject`). Raises OSError."""
        self._socket = FaultSocket(path, self.apply)

    def listen_for_processes(self, path: Path) -> None:
        """Let processes allocate memory at the unix socket `path`, see `devices.device_socket`. Raises OSError."""
        self._devices = DeviceSocket(path, self)

    def close(self) -> None:
        """Restore the binding's former library, release hanging calls, and stop listening."""
        if self._devices:
            self._devices.close()
            self._devices = None
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
        """Inject a fault given as data; the shapes are those of `inject`. Returns the answer to send.

        Raises:
            FaultError: no such fault, or not for this box.
        """
        given = dict(fault)
        kind = given.pop("fault", None)
        match kind:
            case "xid":
                arguments = _checked(kind, self.xid, given, code=int, any_waiter=bool)
                return {"heard_by": self.xid(**arguments)}
            case "ecc":
                arguments = _checked(kind, self.double_bit_ecc, given)
                return {"heard_by": self.double_bit_ecc(**arguments)}
            case str() if kind in FAULTS:
                method = getattr(self, kind)
                arguments = _checked(kind, method, given, **FAULTS[kind])
                method(**arguments)
            case _:
                what = "the field fault is missing" if kind is None else f"there is no fault {kind!r}"
                raise FaultError(f"{what}; faults are xid, ecc, {', '.join(FAULTS)}")
        return {}


def install(box: Box, cgroups: CgroupSource | None = None) -> Simulator:
    """Put `box` in place of the NVIDIA driver of this process. Undo with `Simulator.close`.

    A driver from 615 on limits the memory of `cgroups`: by default, of the machine's own.
    """
    return Simulator(box, cgroups)


def _put_library(library: Any) -> Any:
    """Swap the binding's library; its cached function pointers belong to the former one. Returns the former."""
    with pynvml.libLoadLock:
        former = pynvml.nvmlLib
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (its function cache outlives the library)
    return former


def _checked(fault: str, method: Callable[..., object], given: Fields, **kinds: Any) -> Fields:
    """The arguments of a fault, as its method takes them. Raises FaultError."""
    _check_names(fault, method, given)
    kinds["error"] = str | int | None
    kinds["gpu"] = str | int | None
    for key, kind in kinds.items():
        if key in given:
            _check(f"fault {fault}: {key}", key, kind, given[key])
    if isinstance(given.get("error"), str):
        error_code(given["error"])
    return given


def _check_names(fault: str, method: Callable[..., object], given: Fields) -> None:
    """Check that every argument without a default is there, and no other. Raises FaultError."""
    parameters = inspect.signature(method).parameters
    missing = []
    for name, parameter in parameters.items():
        is_required = parameter.default is parameter.empty
        if is_required and name not in given:
            missing.append(name)
    if missing:
        needed = " and ".join(missing)
        raise FaultError(f"fault {fault} needs {needed}")
    unknown = [name for name in given if name not in parameters]
    if unknown:
        names = " or ".join(unknown)
        known = ", ".join(parameters)
        raise FaultError(f"fault {fault} has no field {names}; it has {known}")


def _check(what: str, key: str, kind: Any, value: object) -> None:
    """Check one argument. Raises FaultError."""
    # For Python, true and false are numbers.
    is_odd_bool = isinstance(value, bool) and kind is not bool
    if is_odd_bool or not isinstance(value, kind):
        wanted = _WORDS.get(key) or _WORDS[kind]
        raise FaultError(f"{what} is {wanted}, not {value!r}")
    # The GPU is looked up later.
    if isinstance(value, int) and key != "gpu":
        _check_range(what, value, _MOST.get(key, MOST_NUMBER))


def _check_range(what: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise FaultError(f"{what} is a number from 0 to {most}, not {number}")
