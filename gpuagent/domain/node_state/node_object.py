"""The Node object of the API server, and the mode and the placement that its labels set."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.former_gpus import FormerGpus, former_gpus, gpus_before_annotation
from gpuagent.domain.pods.json_values import mapping, mappings
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.mode import DISABLE_LABEL, MODE_LABEL, PLACEMENT_LABEL, Mode, Placement

_MODES = {str(mode): mode for mode in Mode}
_PLACEMENTS = {str(placement): placement for placement in Placement}


@dataclass(frozen=True, kw_only=True)
class Node:
    """The node's mode, its placement, and the object itself.

    Attributes:
        mode: the mode in force; the target while a switch is in progress.
        mode_known: False until the label was read, if neither a flag nor an earlier run sets the mode.
        mode_unsaved: why the mode is not saved for the next start.
        object: as the API server had it last, decoded JSON; None before the first read.
        former_gpus: the GPUs that the node had when its annotation was last read.
        problem: why the agent does not see changes of the object.
        write_problem: why the agent's fields of the object are not up to date.
        events_problem: why the API server refuses Events.
        configmaps_problem: why the ConfigMaps about the node are not up to date.
    """

    mode: Mode = Mode.DEFAULT
    mode_known: bool = True
    mode_unsaved: str | None = None
    label: str | None = None
    label_problem: str | None = None
    placement: Placement = Placement.BINPACK
    placement_problem: str | None = None
    object: Mapping[str, Any] | None = None
    former_gpus: FormerGpus = field(default_factory=dict)
    problem: str | None = None
    write_problem: str | None = None
    events_problem: str | None = None
    configmaps_problem: str | None = None

    def taken(self, event: ev.Event, policy: Policy) -> Self:
        match event:
            case ev.NodeSeen():
                return self._seen(event.node, forced=policy.forced_mode is not None)
            case ev.ApiUnavailable(what="node"):
                return replace(self, problem=event.reason)
            case ev.ModeKept():
                return replace(self, mode_unsaved=event.problem)
        return self._written(event)

    def _written(self, event: ev.Event) -> Self:
        match event:
            case ev.NodeKept():
                return replace(self, write_problem=event.problem)
            case ev.EventsSent():
                return replace(self, events_problem=event.problem)
            case ev.ReportsKept():
                return replace(self, configmaps_problem=event.problem)
        return self

    def _seen(self, node: Mapping[str, Any], *, forced: bool) -> Self:
        seen = replace(self, object=node, problem=None)
        label = seen.labels.get(MODE_LABEL)
        placement = seen.labels.get(PLACEMENT_LABEL)
        mode = self.mode
        label_problem = None
        placement_problem = None
        if label is not None and label not in _MODES:
            known = ", ".join(_MODES)
            written = f"node label {MODE_LABEL}={label!r}"
            label_problem = f"{written} is not a mode; {mode} stays in force (known: {known})"
        # Without the label, the mode stays in force.
        elif label is not None and not forced:
            mode = _MODES[label]
        if placement is not None and placement not in _PLACEMENTS:
            placement_problem = (
                f"node label {PLACEMENT_LABEL}={placement!r} is neither binpack nor spread; "
                f"{self.placement} stays in force"
            )
        return replace(
            seen,
            former_gpus=self._former_gpus(node),
            mode=mode,
            mode_known=True,
            label=label,
            label_problem=label_problem,
            placement=_PLACEMENTS.get(placement or Placement.BINPACK, self.placement),
            placement_problem=placement_problem,
        )

    def _former_gpus(self, node: Mapping[str, Any]) -> FormerGpus:
        known = former_gpus(node)
        if known is not None:
            return known
        if self.object is None:
            return gpus_before_annotation(node)
        # If the annotation is there no more, the operator has removed it: the node has the GPUs that it should have.
        was_removed = former_gpus(self.object) is not None
        return {} if was_removed else self.former_gpus

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the object."""
        node = mapping(self.object)
        metadata = mapping(node.get("metadata"))
        return mapping(metadata.get("labels"))

    @property
    def allocatable(self) -> Mapping[str, Any]:
        """Resource name to quantity."""
        node = mapping(self.object)
        status = mapping(node.get("status"))
        return mapping(status.get("allocatable"))

    @property
    def isolation_disabled(self) -> bool:
        """Whether the node's label makes cGPU run containers without isolation."""
        return self.labels.get(DISABLE_LABEL) == "true"

    def has_taint(self, key: str) -> bool:
        """Whether the object has a taint with this key."""
        node = mapping(self.object)
        spec = mapping(node.get("spec"))
        taints = mappings(spec.get("taints"))
        return any(taint.get("key") == key for taint in taints)
