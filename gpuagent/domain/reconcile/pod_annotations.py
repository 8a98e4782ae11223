"""The desired annotations of this node's pods: the scheduler's decision, completed, corrected or replaced.

`docs/annotations.md` has the rules. Kubelet's allocations decide. The agent writes only keys of `annotations.KEYS`, and
removes none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.certain_holdings import Amounts, PodHeld, certain, changed_pods
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import Assumed, Malformed, Shares
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.scheduling.decision import for_another_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.sharing.units import units_of
from gpuagent.domain.state import State

GpusByUuid = Mapping[str, Gpu]
UnitsByMinor = dict[int, int]
"""Minor number of a GPU to units."""
GpuNames = Mapping[str, str]
"""Name of a GPU in annotations, a minor number or UUID, to its UUID."""

_SHARES = ((GPU_MEM, an.MEMORY_ANNOTATION), (GPU_CORE, an.CORE_ANNOTATION))
_DIGITS = 20
_LONGEST = 200
"""Characters of a former annotation that an Event repeats."""


@dataclass(frozen=True, slots=True)
class PodWrite:
    """One change of a pod's annotations, against the version that the agent has seen.

    Attributes:
        pod: the pod's name.
        uid: the pod's UID.
        version: `resourceVersion` of the pod on which the change is based.
        texts: annotation key to the new text.
        stamped: set `ALIYUN_COM_GPU_MEM_ASSUME_TIME` to the time of the write, as the open plugin does.
        corrections: contradictions between kubelet's allocations and the former annotations, in words.
    """

    pod: PodName
    uid: str
    version: str
    texts: Mapping[str, str]
    stamped: bool = False
    corrections: tuple[str, ...] = ()

    def body(self, now_ns: int) -> dict[str, Any]:
        """A merge patch that the API server refuses (409) once the pod is another version; `now_ns` is Unix time."""
        texts = dict(self.texts)
        if self.stamped:
            texts[an.V1_ASSUMED] = str(now_ns)
        return {
            "metadata": {
                "uid": self.uid,
                "resourceVersion": self.version,
                "annotations": texts,
            }
        }


def writes(state: State, before: State | None = None, former: Collection[PodWrite] = ()) -> tuple[PodWrite, ...]:
    """The writes that pods of this node need; none for a pod with correct annotations.

    A terminating pod gets no write but to correct annotations, which schedulers still count.

    `former` are the writes for `before`: an unchanged pod with the same allocations needs the same one, and is not
    worked out again.
    """
    changed = changed_pods(state, before)
    seen_uids = {pod.uid for pod in state.pods.seen}
    changed_uids = {pod.uid for pod in changed}
    needed = []
    for write in former:
        is_gone = write.uid not in seen_uids
        if not is_gone and write.uid not in changed_uids:
            needed.append(write)
    for held in certain(state, changed):
        write = _write(held, state)
        if _is_needed(write, held):
            needed.append(write)
    return tuple(needed)


def _is_needed(write: PodWrite, held: PodHeld) -> bool:
    changes_pod = bool(write.texts) or write.stamped
    corrects = bool(write.corrections)
    if held.pod.deleting:
        return changes_pod and corrects
    return changes_pod


@dataclass(slots=True)
class _Draft:
    """An unfinished write.

    Attributes:
        held: the pod, and what it holds by kubelet's allocations.
        gpus: of the node, by UUID.
        policy: of the agent.
        memory: minor number to the units of memory that the pod holds.
        texts: annotation key to the new text.
        corrections: contradictions, in words.
        stamped: the write has the time of the assignment.
    """

    held: PodHeld
    gpus: GpusByUuid
    policy: Policy
    memory: UnitsByMinor
    texts: dict[str, str] = field(default_factory=dict)
    corrections: list[str] = field(default_factory=list)
    stamped: bool = False

    @property
    def present(self) -> Mapping[str, str]:
        """The pod's annotations as they are."""
        return self.held.pod.annotations

    @property
    def adds(self) -> bool:
        """Whether the agent adds annotations of its own, and not only keeps those of schedulers right."""
        return self.policy.annotate_pods

    @property
    def on_one_gpu(self) -> bool:
        """Whether all the pod's memory is on one GPU, as V1 can say it."""
        return len(self.memory) == 1

    @property
    def has_v1(self) -> bool:
        return any(key in self.present for key in an.V1_KEYS)

    def put(self, key: str, text: str) -> None:
        if self.present.get(key) != text:
            self.texts[key] = text

    def correct(self, key: str, written: object, held: str) -> None:
        """Note a contradiction between an annotation and what the pod holds."""
        text = f"annotation {key} says {written}"
        if isinstance(written, Malformed):
            text = str(written)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}…"
        self.corrections.append(
            f"{text}; according to kubelet's allocations, the pod holds {held}, and the agent corrects the annotation"
        )


def _write(held: PodHeld, state: State) -> PodWrite:
    pod = held.pod
    gpus = state.gpus.by_uuid
    memory = _by_number(held.of(GPU_MEM), gpus)
    draft = _Draft(held, gpus, state.policy, memory)
    _put_v1(draft)
    for resource, key in _SHARES:
        _put_v2(draft, resource, key)
    _put_whole(draft)
    if draft.texts or draft.stamped or for_another_pod(pod):
        # With the UID of this pod, no scheduler takes a copy of these annotations for a decision on the copy.
        draft.put(an.DECIDED_ANNOTATION, pod.uid)
    return PodWrite(
        pod=pod.name,
        uid=pod.uid,
        version=pod.version,
        texts=draft.texts,
        stamped=draft.stamped,
        corrections=tuple(draft.corrections),
    )


# V1: one GPU, and the pod's units of memory on it.


def _put_v1(draft: _Draft) -> None:
    if not draft.memory:
        return
    has_v2 = an.MEMORY_ANNOTATION in draft.present
    has_v1_gpu = an.V1_GPU in draft.present
    adds_v1 = draft.adds and draft.on_one_gpu and not has_v2
    if not draft.has_v1 and not adds_v1:
        return
    # If the pod is on several GPUs and V2 names them, V1 adds nothing: one index would only mislead.
    is_only_in_v2 = has_v2 and not draft.on_one_gpu
    adds_keys = has_v1_gpu or not is_only_in_v2
    texts = _v1_texts(draft)
    for key, text in texts.items():
        if adds_keys or key in draft.present:
            draft.put(key, text)
    confirms = an.V1_ASSIGNED in draft.texts
    time = draft.present.get(an.V1_ASSUMED)
    draft.stamped = confirms or _needs_time(time, adds_keys=adds_keys)


def _v1_texts(draft: _Draft) -> dict[str, str]:
    """The annotations of V1 that the pod should have, with the plugin's confirmation. Notes contradictions."""
    memory = draft.memory
    numbered = _with_minor_numbers(draft, an.V1_GPU)
    written = an.assumed({**draft.present, **numbered})
    decision = written if isinstance(written, Assumed) else None
    # A scheduler may ignore sidecars and init containers. So accept its sum as well as the sum of all holdings, and
    # prefer a GPU of the other containers.
    of_containers = draft.held.of_containers(GPU_MEM)
    counted = _by_number(of_containers, draft.gpus) or memory
    gpu = _with_most_units(counted)
    if decision and decision.gpu in counted:
        gpu = decision.gpu
    units = memory[gpu]
    accepted = {units, counted[gpu]}
    if decision and decision.units in accepted:
        units = decision.units
    totals = _totals(draft)
    confirmed = Assumed(gpu, units, totals[gpu], assigned=True)
    texts = an.assumed_texts(confirmed)
    holds = f"{memory[gpu]} units of GPU {gpu}"
    if isinstance(written, Malformed):
        draft.correct(written.key, written, holds)
    if decision is None:
        return texts

    has_right_gpu = decision.gpu == gpu
    if has_right_gpu:
        texts[an.V1_GPU] = draft.present[an.V1_GPU]  # keep the scheduler's form, which may be a UUID
    has_right_units = decision.units is None or decision.units in accepted
    is_right = has_right_gpu and has_right_units
    was_confirmed = draft.present.get(an.V1_ASSIGNED) == "true"
    if not is_right:
        holds += _on_other_gpus(memory)
        draft.correct(an.V1_GPU, _v1_words(decision), holds)
    elif was_confirmed and decision.gpu_units is not None:
        # Keep the GPU's size of the time when the agent confirmed it: it shows a later change of units.
        del texts[an.V1_GPU_UNITS]
    return texts


def _on_other_gpus(memory: UnitsByMinor) -> str:
    rest = len(memory) - 1
    if not rest:
        return ""
    return f" (and of {rest} more GPUs, which one index cannot say)"


def _with_most_units(units: UnitsByMinor) -> int:
    """The GPU with the most units; of several, the one with the lowest number."""
    numbers = sorted(units)
    return max(numbers, key=lambda number: units[number])


def _v1_words(decision: Assumed) -> str:
    units = "no" if decision.units is None else decision.units
    return f"{decision.gpu}, with {units} units in {an.V1_UNITS}"


def _needs_time(time: str | None, *, adds_keys: bool) -> bool:
    """Whether the time of the assignment is missing or unreadable."""
    if time is None:
        return adds_keys
    is_number = time.isascii() and time.isdecimal()
    return not is_number or len(time) > _DIGITS


def _totals(draft: _Draft) -> UnitsByMinor:
    """Minor number to the units of memory that the GPU has in all."""
    totals = {}
    for uuid, kind in draft.held.of(GPU_MEM):
        gpu = draft.gpus[uuid]
        totals[gpu.minor] = units_of(gpu, kind, draft.policy.unit)
    return totals


# V2: each container's units on each GPU, with an annotation for each resource.


def _put_v2(draft: _Draft, resource: str, key: str) -> None:
    if key not in draft.present:
        # V1 has one GPU for the whole pod. For several GPUs, write V2.
        is_in_v1 = resource == GPU_MEM and draft.on_one_gpu and draft.has_v1
        if is_in_v1 or not draft.adds:
            return
    units = _units_by_container(draft, resource)
    text = an.shares_text(Shares(units))
    if len(text) > an.MOST_TEXT:
        return  # the agent could not read it back, and would write it again and again
    # Annotations cannot number sidecars and init containers.
    has_unnumbered = bool(draft.held.unnumbered.get(resource))
    written = an.shares(_with_minor_numbers(draft, key), key)
    if written is None:
        # With a sidecar, the annotation lacks the sidecar's units. V1 has all memory, if that is on one GPU.
        v1_has_all = resource == GPU_MEM and draft.on_one_gpu
        v1_is_better = v1_has_all and has_unnumbered
        if units and not v1_is_better:
            draft.put(key, text)
        return
    if isinstance(written, Malformed):
        draft.correct(key, written, text)
        draft.put(key, text)
        return
    written_units = _without_zeros(written)
    if has_unnumbered:
        # The author may have added entries for sidecars or init containers, at positions that no container has.
        positions = written_units.keys() & units.keys()
        written_units = {position: written_units[position] for position in positions}
    if written_units != units:
        draft.correct(key, draft.present[key], text)
        draft.put(key, text)


def _units_by_container(draft: _Draft, resource: str) -> dict[int, UnitsByMinor]:
    """Position of a container in `spec.containers` to the units of `resource` by minor number."""
    units = {}
    for (name, position), amounts in sorted(draft.held.containers.items()):
        if name == resource:
            units[position] = _by_number(amounts, draft.gpus)
    return units


def _without_zeros(shares: Shares) -> dict[int, UnitsByMinor]:
    """What an annotation says, without GPUs of 0 units and containers that have none."""
    units = {}
    for position, by_gpu in shares.containers.items():
        of_container = {gpu: count for gpu, count in by_gpu.items() if count}
        if of_container:
            units[position] = of_container
    return units


# The topology family: the pod's whole GPUs, and the GPUs that it sees.


def _put_whole(draft: _Draft) -> None:
    held = draft.held.of(GPU_WHOLE)
    uuids = {uuid for uuid, kind in held if kind is Kind.WHOLE_TOPOLOGY}
    if not uuids:
        return
    by_name: dict[str, str] = {}
    for uuid, gpu in draft.gpus.items():
        by_name[uuid] = uuid
        by_name[str(gpu.minor)] = uuid
    _put_group(draft, uuids, by_name)
    _correct_visible(draft, uuids, by_name)


def _put_group(draft: _Draft, uuids: set[str], by_name: GpuNames) -> None:
    """The pod's whole GPUs."""
    text = _minors(uuids, draft.gpus)
    group = an.gpu_names(draft.present, GROUP_ANNOTATION)
    if group is None:
        if draft.adds:
            draft.put(GROUP_ANNOTATION, text)
        return
    words: object = group
    if isinstance(group, tuple):
        named = {by_name.get(name) for name in group}
        if named == uuids:
            return
        words = ",".join(group)
    draft.correct(GROUP_ANNOTATION, words, f"GPUs {text}")
    draft.put(GROUP_ANNOTATION, text)


def _correct_visible(draft: _Draft, uuids: set[str], by_name: GpuNames) -> None:
    """The GPUs that the pod sees: its own, and others that a scheduler may have added.

    Only the container's environment shows the others, so kubelet's allocations cannot contradict them.
    """
    visible = an.gpu_names(draft.present, VISIBLE_ANNOTATION)
    if visible is None:
        return
    seen: set[str] = set()
    words: object = visible
    if isinstance(visible, tuple):
        seen = {by_name[name] for name in visible if name in by_name}
        words = ",".join(visible)
    if seen >= uuids:
        return
    own = _minors(uuids, draft.gpus)
    all_seen = _minors(seen | uuids, draft.gpus)
    draft.correct(VISIBLE_ANNOTATION, words, f"GPUs {own}")
    draft.put(VISIBLE_ANNOTATION, all_seen)


def _minors(uuids: Iterable[str], gpus: GpusByUuid) -> str:
    """The text of an annotation of this family: minor numbers, ascending."""
    minors = sorted(gpus[uuid].minor for uuid in uuids)
    return ",".join(map(str, minors))


# For all of them.


def _with_minor_numbers(draft: _Draft, key: str) -> dict[str, str]:
    """The annotation, if there is one, with UUIDs of this node's GPUs replaced by their minor numbers."""
    text = draft.present.get(key)
    if text is None:
        return {}
    if "GPU-" not in text:  # it names no GPU by UUID, as usual
        return {key: text}
    for uuid, gpu in draft.gpus.items():
        minor = str(gpu.minor)
        if text == uuid:  # V1 has the name alone
            return {key: minor}
        text = text.replace(f'"{uuid}"', f'"{minor}"')
    return {key: text}


def _by_number(amounts: Amounts, gpus: GpusByUuid) -> UnitsByMinor:
    """Minor number to units, of all kinds together."""
    total: Counter[int] = Counter()
    for (uuid, _), units in amounts.items():
        minor = gpus[uuid].minor
        total[minor] += units
    return dict(sorted(total.items()))
