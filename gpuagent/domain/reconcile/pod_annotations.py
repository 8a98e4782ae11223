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
from gpuagent.domain.scheduling.decision import for_another_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.domain.state import State

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

    A terminating pod gets corrections only, because schedulers still count its annotations.

    `former` are the writes for `before`. An unchanged pod with the same allocations needs the same write.
    """
    changed = changed_pods(state, before)
    unchanged_uids = {pod.uid for pod in state.pods.seen}
    unchanged_uids -= {pod.uid for pod in changed}
    needed = [write for write in former if write.uid in unchanged_uids]
    for held in certain(state, changed):
        write = _write(held, state)
        changes_pod = bool(write.texts) or write.stamped
        only_completes = not write.corrections
        if changes_pod and not (only_completes and held.pod.deleting):
            needed.append(write)
    return tuple(needed)


@dataclass(slots=True)
class _Draft:
    """An unfinished write.

    Attributes:
        has: the pod's annotations.
        texts: those to write.
    """

    has: Mapping[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    corrections: list[str] = field(default_factory=list)
    stamped: bool = False

    def put(self, texts: Mapping[str, str]) -> None:
        for key, text in texts.items():
            if self.has.get(key) != text:
                self.texts[key] = text

    def correct(self, key: str, written: object, held: str) -> None:
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
    draft = _Draft(pod.annotations)
    gpus = state.gpus.by_uuid
    annotate = state.policy.annotate_pods

    memory = _by_number(held.of(GPU_MEM), gpus)
    on_one_gpu = len(memory) == 1
    has_v2 = an.MEMORY_ANNOTATION in draft.has
    has_v1 = any(key in draft.has for key in an.V1_KEYS)
    adds_v1 = annotate and on_one_gpu and not has_v2
    if memory and (has_v1 or adds_v1):
        adds_keys = on_one_gpu or not has_v2 or an.V1_GPU in draft.has
        _complete(draft, held, gpus, state.policy.unit, adds_keys=adds_keys)

    for resource, key in _SHARES:
        # V1 has one GPU for the whole pod. For several GPUs, write V2.
        is_in_v1 = has_v1 and resource == GPU_MEM and on_one_gpu
        adds_v2 = annotate and not is_in_v1
        if key in draft.has or adds_v2:
            _share(draft, key, held, resource, gpus)

    _whole(draft, held, gpus, annotate=annotate)

    if draft.texts or draft.stamped or for_another_pod(pod):
        # With the UID of this pod, no scheduler takes a copy of these annotations for a decision on the copy.
        draft.put({an.DECIDED_ANNOTATION: pod.uid})
    return PodWrite(
        pod=pod.name,
        uid=pod.uid,
        version=pod.version,
        texts=draft.texts,
        stamped=draft.stamped,
        corrections=tuple(draft.corrections),
    )


def _share(draft: _Draft, key: str, held: PodHeld, resource: str, gpus: Mapping[str, Gpu]) -> None:
    """V2, for one resource: each container's units on each GPU."""
    units = _units_by_container(held, resource, gpus)
    text = an.shares_text(Shares(units))
    if len(text) > an.MOST_TEXT:
        return  # the agent could not read it back, and would write it again and again
    # Annotations cannot number sidecars and init containers.
    has_unnumbered = bool(held.unnumbered.get(resource))
    written = an.shares(_numbered(draft.has, key, gpus), key)
    if written is None:
        # With a sidecar, the annotation lacks the sidecar's units. V1 has all memory, if that is on one GPU.
        v1_has_all = resource == GPU_MEM and len(_by_number(held.of(resource), gpus)) == 1
        v1_is_better = v1_has_all and has_unnumbered
        if units and not v1_is_better:
            draft.put({key: text})
        return
    if isinstance(written, Malformed):
        draft.correct(key, written, text)
        draft.put({key: text})
        return
    written_units = _without_zeros(written)
    if has_unnumbered:
        # The author may have added entries for sidecars or init containers, at positions that no container has.
        written_units = {position: of_gpus for position, of_gpus in written_units.items() if position in units}
    if written_units != units:
        draft.correct(key, draft.has[key], text)
        draft.put({key: text})


def _units_by_container(held: PodHeld, resource: str, gpus: Mapping[str, Gpu]) -> dict[int, dict[int, int]]:
    """Position of a container in `spec.containers` to the units of `resource` by minor number."""
    units = {}
    for (name, position), amounts in sorted(held.containers.items()):
        if name == resource:
            units[position] = _by_number(amounts, gpus)
    return units


def _without_zeros(shares: Shares) -> dict[int, dict[int, int]]:
    """What an annotation says, without GPUs of 0 units and containers that have none."""
    units = {}
    for position, by_gpu in shares.containers.items():
        of_container = {gpu: count for gpu, count in by_gpu.items() if count}
        if of_container:
            units[position] = of_container
    return units


def _complete(draft: _Draft, held: PodHeld, gpus: Mapping[str, Gpu], unit: MemoryUnit, *, adds_keys: bool) -> None:
    """V1: one GPU and the pod's units on it, with the plugin's confirmation.

    `adds_keys`: add missing keys. It is False if the pod is on several GPUs that V2 names already.
    """
    memory = _by_number(held.of(GPU_MEM), gpus)
    written = an.assumed({**draft.has, **_numbered(draft.has, an.V1_GPU, gpus)})
    decision = written if isinstance(written, Assumed) else None
    # A scheduler may ignore sidecars and init containers. So accept its sum as well as the sum of all holdings, and
    # prefer a GPU of the other containers.
    counted = _by_number(held.of_containers(GPU_MEM), gpus) or memory
    gpu = _largest(counted)
    if decision and decision.gpu in counted:
        gpu = decision.gpu
    accepted = {memory[gpu], counted[gpu]}
    units = memory[gpu]
    if decision and decision.units in accepted:
        units = decision.units
    texts = an.assumed_texts(Assumed(gpu, units, _totals(held, gpus, unit)[gpu], assigned=True))
    if decision and decision.gpu == gpu:
        texts[an.V1_GPU] = draft.has[an.V1_GPU]  # keep the scheduler's form, which may be a UUID

    holds = f"{memory[gpu]} units of GPU {gpu}"
    if isinstance(written, Malformed):
        draft.correct(written.key, written, holds)
    elif decision and (decision.gpu != gpu or decision.units not in {None, *accepted}):
        if len(memory) > 1:
            holds = f"{holds} (and of {len(memory) - 1} more GPUs, which one index cannot say)"
        draft.correct(an.V1_GPU, _v1_text(decision), holds)
    elif decision and decision.gpu_units is not None and draft.has.get(an.V1_ASSIGNED) == "true":
        # The agent has confirmed it before. Keep the GPU's size of that time: it shows a later change of units.
        del texts[an.V1_GPU_UNITS]

    for key, text in texts.items():
        if adds_keys or key in draft.has:
            draft.put({key: text})
    draft.stamped = an.V1_ASSIGNED in draft.texts or _needs_time(draft.has.get(an.V1_ASSUMED), adds_keys=adds_keys)


def _largest(units: Mapping[int, int]) -> int:
    """The GPU with the most units; of several, the one with the lowest number."""
    return max(units, key=lambda number: (units[number], -number))


def _v1_text(decision: Assumed) -> str:
    units = "no" if decision.units is None else decision.units
    return f"{decision.gpu}, with {units} units in {an.V1_UNITS}"


def _needs_time(time: str | None, *, adds_keys: bool) -> bool:
    """Whether the time of the assignment is missing or unreadable."""
    if time is None:
        return adds_keys
    is_time = time.isascii() and time.isdecimal() and len(time) <= _DIGITS
    return not is_time


def _whole(draft: _Draft, held: PodHeld, gpus: Mapping[str, Gpu], *, annotate: bool) -> None:
    """The topology family: the pod's whole GPUs, and the GPUs that it sees."""
    uuids = {uuid for uuid, kind in held.of(GPU_WHOLE) if kind is Kind.WHOLE_TOPOLOGY}
    if not uuids:
        return
    by_name = {uuid: uuid for uuid in gpus}
    by_name |= {str(gpu.minor): gpu.uuid for gpu in gpus.values()}
    _group(draft, uuids, by_name, gpus, annotate=annotate)
    _visible(draft, uuids, by_name, gpus)


def _group(
    draft: _Draft, uuids: set[str], by_name: Mapping[str, str], gpus: Mapping[str, Gpu], *, annotate: bool
) -> None:
    """The pod's whole GPUs."""
    text = _minors(uuids, gpus)
    group = an.gpu_names(draft.has, GROUP_ANNOTATION)
    if group is None:
        if annotate:
            draft.put({GROUP_ANNOTATION: text})
        return
    if isinstance(group, Malformed):
        draft.correct(GROUP_ANNOTATION, group, f"GPUs {text}")
        draft.put({GROUP_ANNOTATION: text})
        return
    named = {by_name.get(name) for name in group}
    if named != uuids:
        draft.correct(GROUP_ANNOTATION, ",".join(group), f"GPUs {text}")
        draft.put({GROUP_ANNOTATION: text})


def _visible(draft: _Draft, uuids: set[str], by_name: Mapping[str, str], gpus: Mapping[str, Gpu]) -> None:
    """The GPUs that the pod sees: its own, and others that a scheduler may have added.

    Only the container's environment shows the others, so kubelet's allocations cannot contradict them.
    """
    held = f"GPUs {_minors(uuids, gpus)}"
    visible = an.gpu_names(draft.has, VISIBLE_ANNOTATION)
    if visible is None:
        return
    if isinstance(visible, Malformed):
        draft.correct(VISIBLE_ANNOTATION, visible, held)
        draft.put({VISIBLE_ANNOTATION: _minors(uuids, gpus)})
        return
    seen = {by_name[name] for name in visible if name in by_name}
    if not seen >= uuids:
        draft.correct(VISIBLE_ANNOTATION, ",".join(visible), held)
        draft.put({VISIBLE_ANNOTATION: _minors(seen | uuids, gpus)})


def _minors(uuids: Iterable[str], gpus: Mapping[str, Gpu]) -> str:
    """The text of an annotation of this family: minor numbers, ascending."""
    minors = sorted(gpus[uuid].minor for uuid in uuids)
    return ",".join(map(str, minors))


def _numbered(has: Mapping[str, str], key: str, gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """The annotation, if there is one, with UUIDs of this node's GPUs replaced by their minor numbers."""
    text = has.get(key)
    if text is None:
        return {}
    if "GPU-" not in text:  # it names no GPU by UUID, as usual
        return {key: text}
    for uuid, gpu in gpus.items():
        minor = str(gpu.minor)
        if text == uuid:  # V1 has the name alone
            return {key: minor}
        text = text.replace(f'"{uuid}"', f'"{minor}"')
    return {key: text}


def _by_number(amounts: Amounts, gpus: Mapping[str, Gpu]) -> dict[int, int]:
    """Minor number to units, of all kinds together."""
    total: Counter[int] = Counter()
    for (uuid, _), units in amounts.items():
        total[gpus[uuid].minor] += units
    return dict(sorted(total.items()))


def _totals(held: PodHeld, gpus: Mapping[str, Gpu], unit: MemoryUnit) -> dict[int, int]:
    """Minor number to the units of memory that the GPU has in all."""
    totals = {}
    for uuid, kind in held.of(GPU_MEM):
        gpu = gpus[uuid]
        totals[gpu.minor] = units_of(gpu, kind, unit)
    return totals
