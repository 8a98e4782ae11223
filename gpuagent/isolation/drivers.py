"""The list of isolation drivers: every module of this package with `PREFERENCE` and `make`, or `driver` of a folder."""

import importlib
import pkgutil
from types import ModuleType

import gpuagent.isolation
from gpuagent.domain.sharing.isolation_layers import AUTO
from gpuagent.isolation.interface import Isolation, Options


def _modules() -> dict[str, ModuleType]:
    """The modules of drivers by name, best first."""
    drivers = {}
    for info in pkgutil.iter_modules(gpuagent.isolation.__path__):
        if info.name == "drivers":
            continue  # this module, which is just being imported
        path = f"{info.name}.driver" if info.ispkg else info.name
        module = importlib.import_module(f"gpuagent.isolation.{path}")
        if hasattr(module, "PREFERENCE"):
            drivers[info.name] = module
    names = sorted(drivers, key=lambda name: drivers[name].PREFERENCE)
    return {name: drivers[name] for name in names}


_MODULES = _modules()
SETTINGS = (AUTO, *_MODULES)
"""Values of the setting `--isolation`."""


def make(options: Options) -> dict[str, Isolation]:
    """The drivers by name, best first. A driver that is not chosen still removes the remains of an earlier run."""
    return {name: module.make(options) for name, module in _MODULES.items()}
