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
class NodeBefore:
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

    def has(self, path: str, state: PathState) -> bool:
        """Whether the path has that content already."""
        return self.paths[path].same(state)

    def place(self, path: str, after: PathState) -> Place:
        """The step that gives the path another content; undone, the path has its present one again."""
        return Place(path, after, self.paths[path])


def put(node: NodeBefore, old: Installed | None, new: Installed, record: PathState) -> tuple[Step, ...]:
    """Steps that make `new` the node's layer, in place of `old` if there is one.

    The hook comes last: until then, containers start as before. In an upgrade the old hook stays active while the
    modules change. A container that starts meanwhile fails, and does not get a whole GPU.
    """
    reload = bool(node.loaded) and not _keeps_modules(node, old, new)
    steps: list[Step] = []
    if old and reload:
        steps += _unloading(node, old)
    steps.append(Index(new.kernel, back=True))
    if old:
        steps += _removing_old_files(node, old, new)
    steps += _placing_files(node, new)
    steps += [Index(new.kernel), Devices()]
    steps += [Load(name, keep=name in node.loaded and not reload) for name in new.modules]
    steps += [Verify(new.version, new.modules), Configure(new.settings, new.policy)]
    steps.append(node.place(HOOK, new.files[HOOK]))
    steps.append(node.place(RECORD, record))
    return tuple(steps)


def _keeps_modules(node: NodeBefore, old: Installed | None, new: Installed) -> bool:
    """Whether the modules of `old` are those of `new`, so that they may stay loaded."""
    if old is None or old.version != new.version:
        return False
    own_files = {path: state for path, state in new.files.items() if path not in _SHARED}
    return all(node.has(path, state) for path, state in own_files.items())


def _removing_old_files(node: NodeBefore, old: Installed, new: Installed) -> list[Step]:
    """Steps that remove the files of `old` that `new` does not have."""
    own_paths = old.files.keys() - _SHARED
    return [node.place(path, ABSENT) for path in sorted(own_paths - new.files.keys())]


def _placing_files(node: NodeBefore, new: Installed) -> list[Step]:
    """Steps that put the files of `new` on the node, except for the hook: the configuration comes last."""
    paths = sorted(new.files.keys() - {HOOK, CONF})
    if CONF in new.files:
        paths.append(CONF)
    return [node.place(path, new.files[path]) for path in paths]


def remove(node: NodeBefore, old: Installed) -> tuple[Step, ...]:
    """Steps that take the layer off the node. The hook comes first: no container starts through it any more."""
    steps: list[Step] = []
    if HOOK in old.files and node.has(HOOK, old.files[HOOK]):
        steps.append(node.place(HOOK, old.originals.get(HOOK, ABSENT)))
    steps += _unloading(node, old)
    steps.append(Index(old.kernel, back=True))
    steps += _restoring_files(node, old)
    steps += [Index(old.kernel), node.place(RECORD, ABSENT)]
    return tuple(steps)


def _restoring_files(node: NodeBefore, old: Installed) -> list[Step]:
    """Steps that give each path, except for the hook's, its content from before the layer.

    If another program has changed a shared path since the install, its content stays.
    """
    steps: list[Step] = []
    for path in sorted(old.files.keys() - {HOOK}):
        is_changed = not node.has(path, old.files[path])
        if path in _SHARED and is_changed:
            continue
        steps.append(node.place(path, old.originals.get(path, ABSENT)))
    return steps


def _unloading(node: NodeBefore, old: Installed) -> list[Step]:
    """Steps that unload the modules; undone, they are loaded, checked and set as before."""
    steps: list[Step] = []
    # Steps are undone from the last to the first. So what comes first here is done when the modules are back.
    if node.loaded and node.running:
        steps.append(Verify(node.running, node.loaded, back=True))
        steps.append(Configure(node.settings, old.policy, back=True))
    steps += [Unload(name) for name in reversed(node.loaded)]
    steps.append(Devices(back=True))
    return steps


def originals(node: NodeBefore, old: Installed | None, paths: frozenset[str]) -> dict[str, PathState]:
    """The contents of each path before any layer: kept from the first install unless the path was changed since."""
    contents = {}
    for path in paths:
        is_of_layer = old is not None and path in old.files and node.has(path, old.files[path])
        if not is_of_layer:
            contents[path] = node.paths[path]
        elif old and path in old.originals:
            contents[path] = old.originals[path]
    return contents
