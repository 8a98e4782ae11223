"""The reported state of isolation drivers, and the choice of the driver for a mode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode

AUTO = "auto"
NONE = "none"

LIMITS = "limits"
MPS = "mps"
LIMITS_AND_MPS = f"{LIMITS}+{MPS}"
"""The driver `limits` for memory, together with `mps` for compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The state of one isolation driver at one moment, as the driver reports it.

    Attributes:
        driver: its name, as in `--isolation`.
        installed: whether this node has its components; `auto` skips a driver that is not installed.
        isolates: the resources that it isolates while it works.
        modes: the modes it can serve.
        problem: why it does not work right now, and what to do; None while it works.
        standby: the agent starts it when a mode in force needs it; until then, `problem` says that it is not running.
        unserved: modes that it cannot serve with the setup of this node, to why and what to do.
        left_out: GPU UUID to why that GPU cannot be isolated, and what to do.
        max_sharers: most containers it takes on one GPU; None for no limit of its own.
        version: version of its software, for people; empty if unavailable.
        caveats: limits of its guarantees, one sentence each, for people.
        limits_pods: it limits a pod from outside, so it has to know the pod's UID before a container starts.
        unlimited: UID of each running pod whose limit could not be brought into force, to why and what to do.
        repaired: why limits were set again to how often, since the driver started.
        memory_caveats: those of `caveats` that only apply where this driver limits memory.
        refused: UID of each pod whose limits could not be changed, to why: a container uses more than that. The former
            limits stay in force, and the driver tries again.
        applied: UID of each pod of `Need.resized` to the shares whose limits are in force, as last set and read back.
        untrusted: components on the node that it does not use because another user may control them, and what to do.
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
    limits_pods: bool = False
    unlimited: Mapping[str, str] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    memory_caveats: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    applied: Mapping[str, PodShares] = field(default_factory=dict)
    untrusted: tuple[str, ...] = ()

    def keeps(self, mode: Mode) -> bool:
        """Whether the driver keeps the promises of `mode` right now."""
        works = self.problem_in(mode) is None
        return works and self.could_keep(mode)

    def could_keep(self, mode: Mode) -> bool:
        """Whether the driver keeps the promises of `mode` while it works."""
        return mode in self.modes and PROMISES[mode] <= self.isolates

    def problem_in(self, mode: Mode) -> str | None:
        """Why the driver does not serve `mode` right now; None if it does."""
        return self.problem or self.unserved.get(mode)


def parts(driver: str) -> tuple[str, ...]:
    """The drivers that serve together under this name."""
    return tuple(driver.split("+"))


def together(memory: Layer, compute: Layer) -> Layer:
    """Two drivers as one: the first limits memory, and the second shares out compute."""
    compute_caveats = [text for text in compute.caveats if text not in compute.memory_caveats]
    problem = memory.problem or compute.problem
    return Layer(
        driver=LIMITS_AND_MPS,
        installed=memory.installed and compute.installed,
        isolates=memory.isolates | compute.isolates,
        modes=frozenset({Mode.CORE_MEM, Mode.MPS}),
        problem=problem,
        # The first one is never on standby.
        standby=memory.problem is None and compute.standby,
        left_out={**compute.left_out, **memory.left_out},
        max_sharers=compute.max_sharers,
        version=memory.version,
        caveats=(*memory.caveats, *compute_caveats),
        limits_pods=memory.limits_pods,
        unlimited=memory.unlimited,
        repaired=memory.repaired,
        refused=memory.refused,
        applied=memory.applied,
        untrusted=compute.untrusted,
    )


def with_pairs(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The drivers by name, best first, with those that serve together after the one that limits memory."""
    every: dict[str, Layer] = {}
    for name, layer in layers.items():
        every[name] = layer
        if name == LIMITS and MPS in layers:
            every[LIMITS_AND_MPS] = together(layer, layers[MPS])
    return every


NO_LAYER = Layer(driver=NONE, installed=True, modes=frozenset(Mode))


def chosen(
    mode: Mode,
    setting: str,
    layers: Mapping[str, Layer],
    bound: Mapping[Mode, str],
) -> Layer:
    """The driver for `mode`.

    Args:
        mode: one of the node's.
        setting: a driver's name, or `auto` for the first of `layers` that can serve the mode.
        layers: states of the drivers by name, best first.
        bound: mode to the driver of its running containers, which comes before the best one and before the setting.
    """
    # A mode that promises nothing needs no driver.
    if not PROMISES[mode]:
        return NO_LAYER
    every = with_pairs(layers)
    if mode in bound:
        # Containers keep the driver that they started with. With another one, their limits would not be kept up, or
        # the MPS daemon that they run with would be ended.
        driver = bound[mode]
        return every.get(driver, NO_LAYER)
    if setting == NONE:
        return NO_LAYER
    if setting != AUTO:
        return _of_setting(mode, setting, every)
    for layer in every.values():
        if layer.installed and layer.could_keep(mode):
            return layer
    return NO_LAYER


def _of_setting(mode: Mode, setting: str, layers: Mapping[str, Layer]) -> Layer:
    """The driver that the setting names, or where that cannot serve the mode alone, the pair that it begins."""
    layer = layers.get(setting, NO_LAYER)
    pair = layers.get(LIMITS_AND_MPS)
    if setting == LIMITS and pair is not None and mode in pair.modes:
        return pair
    return layer
