"""Plan a change as steps: pure. The order ensures that no container ever starts unisolated without a report."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuisolation.change.steps import Configure, Devices, Index, Load, Place, Step, Unload, Verify
from gpuisolation.host.facts import HOOK, TOOLKIT
from gpuisolation.host.files import PathState
from gpuisolation.layer import CONF, RECORD, Installed, Settings

ABSENT = PathState()
_SHARED = frozenset({HOOK, CONF, TOOLKIT})
"""Paths that other programs write to, too: their later changes stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The node before the change.

    Attributes:
        paths: the content of each path that may change, with copies.
        loaded: the present layer's modules that are loaded, in load order.
        running: version that /proc/cgpu_km shows; empty if it shows none.
        settings: the settings of its GPUs.
    """

    paths: Mapping[str, PathState]
    loaded: tuple[str, ...] = ()
    running: str = ""
    settings: Settings


def put(now: Now, old: Installed | None, new: Installed, record: PathState) -> tuple[Step, ...]:
    """Steps that make `new` the node's layer, in place of `old` where there is one.

    The hook comes last: until then, containers start as before. In an upgrade the old hook stays active while the
    modules change. A container that starts meanwhile fails, and does not get a whole GPU.
    """
    same = old is not None and all(
        now.paths[path].same(state) for path, state in new.files.items() if path not in _SHARED
    )
    reload = bool(now.loaded) and not (same and old is not None and old.version == new.version)
    steps: list[Step] = [*_unloading(now, old)] if reload and old else []
    steps.append(Index(new.kernel, back=True))
    if old:
        gone = [path for path in old.files if path not in new.files and path not in _SHARED]
        steps += [Place(path, ABSENT, now.paths[path]) for path in sorted(gone)]
    steps += [
        Place(path, state, now.paths[path])
        for path, state in sorted(new.files.items(), key=lambda item: (item[0] == CONF, item[0]))
        if path != HOOK
    ]
    steps += [Index(new.kernel), Devices()]
    steps += [Load(name, keep=name in now.loaded and not reload) for name in new.modules]
    steps += [Verify(new.version, new.modules), Configure(new.settings, new.policy)]
    steps.append(Place(HOOK, new.files[HOOK], now.paths[HOOK]))
    steps.append(Place(RECORD, record, now.paths[RECORD]))
    return tuple(steps)


def remove(now: Now, old: Installed) -> tuple[Step, ...]:
    """Steps that take the layer off the node. The hook comes first: no container starts through it any more."""
    steps: list[Step] = []
    if HOOK in old.files and now.paths[HOOK].same(old.files[HOOK]):
        steps.append(Place(HOOK, old.originals.get(HOOK, ABSENT), now.paths[HOOK]))
    steps += _unloading(now, old)
    steps.append(Index(old.kernel, back=True))
    for path in sorted(old.files):
        if path not in _SHARED or (path != HOOK and now.paths[path].same(old.files[path])):
            steps.append(Place(path, old.originals.get(path, ABSENT), now.paths[path]))
    steps += [Index(old.kernel), Place(RECORD, ABSENT, now.paths[RECORD])]
    return tuple(steps)


def _unloading(now: Now, old: Installed) -> list[Step]:
    back: list[Step] = []
    if now.loaded and now.running:
        back = [
            Verify(now.running, now.loaded, back=True),
            Configure(now.settings, old.policy, back=True),
        ]
    return [*back, *(Unload(name) for name in reversed(now.loaded)), Devices(back=True)]


def originals(now: Now, old: Installed | None, paths: frozenset[str]) -> dict[str, PathState]:
    """The contents of each path before any layer: kept from the first install unless the path was changed since."""
    found = {}
    for path in paths:
        if old and path in old.files and now.paths[path].same(old.files[path]):
            if path in old.originals:
                found[path] = old.originals[path]
        else:
            found[path] = now.paths[path]
    return found
