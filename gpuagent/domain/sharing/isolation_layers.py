"""What isolation drivers say of themselves, and which of them serves a mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One driver's word on itself at one moment.

    Attributes:
        driver: its name, as `--isolation` has it.
        installed: whether this node has what it needs at all; `auto` passes over a driver that is not installed.
        isolates: what it keeps apart where it works.
        modes: the modes it can serve.
        problem: why it does not work right now, and what to do; None while it works.
        standby: it is started when a mode in force needs it, and is the `problem` only until then.
        unserved: modes it cannot serve as the node is set up, to why and what to do.
        left_out: GPU UUID to why that GPU cannot be isolated, and what to do.
        max_sharers: most containers it takes on one GPU; None for no limit of its own.
        version: of the layer, for people; empty where it does not say.
        caveats: what it does not guarantee, one sentence each, for people.
        untrusted: what it found on the node and does not use, because another user may run it, and what to do.
    """

    driver: str
    installed: bool
    isolates: frozenset[Isolates] = frozenset()
    modes: frozenset[Mode] = frozenset()
    problem: str | None = None
    standby: bool = False
    unserved: Mapping[Mode, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    max_sharers: int | None = None
    version: str = ""
    caveats: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()

    def keeps(self, mode: Mode) -> bool:
        """Whether what `mode` promises is kept right now."""
        return mode in self.modes and PROMISES[mode] <= self.isolates and self.problem_in(mode) is None

    def problem_in(self, mode: Mode) -> str | None:
        """Why `mode` is not served right now although the driver can; None if it is."""
        return self.problem or self.unserved.get(mode)


NO_LAYER = Layer(driver=NONE, installed=True, modes=frozenset(Mode))


def chosen(mode: Mode, setting: str, layers: Mapping[str, Layer], bound: Mapping[Mode, str]) -> Layer:
    """The driver for `mode`.

    Args:
        mode: one of the node's.
        setting: a driver's name, or `auto` for the first of `layers` that can serve the mode.
        layers: what drivers say of themselves, best first.
        bound: drivers that running containers have, by mode; they come before the best.
    """
    if not PROMISES[mode] or setting == NONE:
        return NO_LAYER
    if setting != AUTO:
        return layers.get(setting, NO_LAYER)
    if mode in bound:
        return layers.get(bound[mode], NO_LAYER)
    able = (x for x in layers.values() if x.installed and mode in x.modes and PROMISES[mode] <= x.isolates)
    return next(able, NO_LAYER)
