"""The list of isolation drivers: every module of this package with `PREFERENCE` and `make`."""

import importlib
import pkgutil
from types import ModuleType

import gpuagent.isolation
from gpuagent.domain.sharing.isolation_layers import AUTO
from gpuagent.isolation.interface import Isolation, Options


def _modules() -> dict[str, ModuleType]:
    names = (info.name for info in pkgutil.iter_modules(gpuagent.isolation.__path__) if info.name != "drivers")
    modules = {name: importlib.import_module(f"gpuagent.isolation.{name}") for name in names}
    drivers = {name: module for name, module in modules.items() if hasattr(module, "PREFERENCE")}
    return dict(sorted(drivers.items(), key=lambda item: item[1].PREFERENCE))


_MODULES = _modules()
SETTINGS = (AUTO, *_MODULES)
"""Values of the setting `--isolation`."""


def make(options: Options) -> dict[str, Isolation]:
    """The drivers by name, best first. A driver that is not chosen still removes the remains of an earlier run."""
    return {name: module.make(options) for name, module in _MODULES.items()}
