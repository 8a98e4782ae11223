"""The desired annotations of this node's pods: the scheduler's decision, completed, corrected or replaced.

`docs/annotations.md` has the rules. Kubelet's allocations decide. The agent writes only keys of `annotations.KEYS`, and
removes none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.certain_holdings import PodHeld, certain, changed_pods
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
        texts = {**self.texts, **({an.V1_ASSUMED: str(now_ns)} if self.stamped else {})}
        return {"metadata": {"uid": self.uid, "resourceVersion": self.version, "annotations": texts}}


def writes(state: State, before: State | None = None, former: Collection[PodWrite] = ()) -> tuple[PodWrite, ...]:
    """The writes that pods of this node need; none for a pod with correct annotations.

    A terminating pod gets corrections only, because schedulers still count its annotations.

    `former` are the writes for `before`. An unchanged pod with the same allocations needs the same write.
    """
    new = changed_pods(state, before)
    kept = {pod.uid for pod in state.pods.seen}.difference(pod.uid for pod in new)
    drafts = ((held.pod, _write(held, state)) for held in certain(state, new))
    needed = (w for pod, w in drafts if (w.texts or w.stamped) and (w.corrections or not pod.deleting))
    return (*(w for w in former if w.uid in kept), *needed)


@dataclass(slots=True)
class _Draft:
    """An unfinished write."""

    has: Mapping[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    corrections: list[str] = field(default_factory=list)
    stamped: bool = False

    def put(self, texts: Mapping[str, str]) -> None:
        self.texts |= {key: text for key, text in texts.items() if self.has.get(key) != text}

    def correct(self, key: str, written: object, held: str) -> None:
        text = str(written) if isinstance(written, Malformed) else f"annotation {key} says {written}"
        short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        self.corrections.append(
            f"{short}; according to kubelet's allocations, the pod holds {held}, and the agent corrects the annotation"
        )


def _write(held: PodHeld, state: State) -> PodWrite:
    draft = _Draft(held.pod.annotations)
    annotate, gpus = state.policy.annotate_pods, state.gpus.by_uuid
    memory = _by_number(held.of(GPU_MEM), gpus)
    annotated = {resource for resource, key in _SHARES if key in draft.has}
    handshake = any(key in draft.has for key in an.V1_KEYS)
    if memory and (handshake or (annotate and GPU_MEM not in annotated and len(memory) == 1)):
        whole_family = len(memory) == 1 or GPU_MEM not in annotated or an.V1_GPU in draft.has
        _complete(draft, held, gpus, state.policy.unit, whole_family=whole_family)
    for resource, key in _SHARES:
        # V1 has one GPU for the whole pod. For several GPUs, write V2.
        by_v1 = handshake and resource == GPU_MEM and len(memory) == 1
        if resource in annotated or (annotate and not by_v1):
            _share(draft, key, held, resource, gpus)
    _whole(draft, held, gpus, annotate=annotate)
    pod = held.pod
    if draft.texts or draft.stamped or for_another_pod(pod):
        draft.put({an.DECIDED_ANNOTATION: pod.uid})  # a copy of these annotations is then no decision
    return PodWrite(pod.name, pod.uid, pod.version, draft.texts, draft.stamped, tuple(draft.corrections))


def _share(draft: _Draft, key: str, held: PodHeld, resource: str, gpus: Mapping[str, Gpu]) -> None:
    """V2, for one resource: each container's units on each GPU."""
    got = {n: _by_number(amounts, gpus) for (name, n), amounts in sorted(held.containers.items()) if name == resource}
    found = an.shares(_numbered(draft.has, key, gpus), key)
    text = an.shares_text(Shares(got))
    if len(text) > an.MOST_TEXT:
        return  # the agent could not read it back, and would write it again and again
    if found is None:
        # With a sidecar, the annotation lacks the sidecar's units. V1 has all memory, if that is on one GPU.
        by_v1 = resource == GPU_MEM and len(_by_number(held.of(resource), gpus)) == 1
        if got and not (by_v1 and held.unnumbered.get(resource)):
            draft.put({key: text})
        return
    if isinstance(found, Shares):
        written = {n: {gpu: units for gpu, units in of.items() if units} for n, of in found.containers.items()}
        written = {n: of for n, of in written.items() if of}
        if held.unnumbered.get(resource):  # the author may have added sidecars or init containers: skip their entries
            written = {n: of for n, of in written.items() if n in got}
        if written == got:
            return
        draft.correct(key, draft.has[key], text)
    else:
        draft.correct(key, found, text)
    draft.put({key: text})


def _complete(draft: _Draft, held: PodHeld, gpus: Mapping[str, Gpu], unit: MemoryUnit, *, whole_family: bool) -> None:
    """V1: one GPU and the pod's units on it, with the plugin's confirmation.

    `whole_family`: add missing keys. It is False if the pod is on several GPUs that V2 names already.
    """
    memory = _by_number(held.of(GPU_MEM), gpus)
    found = an.assumed({**draft.has, **_numbered(draft.has, an.V1_GPU, gpus)})
    named = found.gpu if isinstance(found, Assumed) else None
    # A scheduler may ignore sidecars and init containers. So accept its sum as well as the sum of all holdings, and
    # prefer a GPU of the other containers.
    counted = _by_number(held.of_containers(GPU_MEM), gpus) or memory
    most = max(counted, key=lambda number: (counted[number], -number))
    gpu = most if named is None or named not in counted else named
    right = {memory[gpu], counted[gpu]}
    units = found.units if isinstance(found, Assumed) and found.units in right else memory[gpu]
    wanted = an.assumed_texts(Assumed(gpu, units, _totals(held, gpus, unit)[gpu], assigned=True))
    if named == gpu:
        wanted[an.V1_GPU] = draft.has[an.V1_GPU]  # keep the scheduler's form, which may be a UUID
    if isinstance(found, Malformed):
        draft.correct(found.key, found, f"{memory[gpu]} units of GPU {gpu}")
    elif found and (named != gpu or found.units not in (None, *right)):
        v1 = f"{found.gpu}, with {'no' if found.units is None else found.units} units in {an.V1_UNITS}"
        more = "" if len(memory) == 1 else f" (and of {len(memory) - 1} more GPUs, which one index cannot say)"
        draft.correct(an.V1_GPU, v1, f"{memory[gpu]} units of GPU {gpu}{more}")
    elif draft.has.get(an.V1_ASSIGNED) == "true" and found and found.gpu_units is not None:
        del wanted[an.V1_GPU_UNITS]  # keep the total of that time: it shows a later change of units
    draft.put({key: text for key, text in wanted.items() if whole_family or key in draft.has})
    time = draft.has.get(an.V1_ASSUMED)
    dated = time is not None and time.isascii() and time.isdecimal() and len(time) <= _DIGITS
    draft.stamped = an.V1_ASSIGNED in draft.texts or (not dated and (whole_family or time is not None))


def _whole(draft: _Draft, held: PodHeld, gpus: Mapping[str, Gpu], *, annotate: bool) -> None:
    """The topology family: the pod's whole GPUs, and the GPUs that it sees."""
    got = {uuid for uuid, kind in held.of(GPU_WHOLE) if kind is Kind.WHOLE_TOPOLOGY}
    if not got:
        return
    by_name = {str(gpu.minor): gpu.uuid for gpu in gpus.values()} | {uuid: uuid for uuid in gpus}

    def text(uuids: Iterable[str]) -> str:
        return ",".join(map(str, sorted(gpus[uuid].minor for uuid in uuids)))

    group = an.gpu_names(draft.has, GROUP_ANNOTATION)
    if group is None:
        if annotate:
            draft.put({GROUP_ANNOTATION: text(got)})
    elif isinstance(group, Malformed) or {by_name.get(name) for name in group} != got:
        written = group if isinstance(group, Malformed) else ",".join(group)
        draft.correct(GROUP_ANNOTATION, written, f"GPUs {text(got)}")
        draft.put({GROUP_ANNOTATION: text(got)})
    visible = an.gpu_names(draft.has, VISIBLE_ANNOTATION)
    if visible is None:
        return
    # Only the container's environment shows its other visible GPUs, so kubelet's allocations cannot contradict them.
    seen = set() if isinstance(visible, Malformed) else {by_name[name] for name in visible if name in by_name}
    if isinstance(visible, Malformed) or not seen >= got:
        written = visible if isinstance(visible, Malformed) else ",".join(visible)
        draft.correct(VISIBLE_ANNOTATION, written, f"GPUs {text(got)}")
        draft.put({VISIBLE_ANNOTATION: text(seen | got)})


def _numbered(has: Mapping[str, str], key: str, gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """The annotation, if there is one, with UUIDs of this node's GPUs replaced by their minor numbers."""
    text = has.get(key)
    if text is None:
        return {}
    for uuid, gpu in gpus.items() if "GPU-" in text else ():
        text = str(gpu.minor) if text == uuid else text.replace(f'"{uuid}"', f'"{gpu.minor}"')
    return {key: text}


def _by_number(amounts: Mapping[tuple[str, Kind], int], gpus: Mapping[str, Gpu]) -> dict[int, int]:
    """Minor number to units, of all kinds together."""
    total: Counter[int] = Counter()
    for (uuid, _), units in amounts.items():
        total[gpus[uuid].minor] += units
    return dict(sorted(total.items()))


def _totals(held: PodHeld, gpus: Mapping[str, Gpu], unit: MemoryUnit) -> dict[int, int]:
    """Minor number to the units of memory that the GPU has in all."""
    return {gpus[uuid].minor: units_of(gpus[uuid], kind, unit) for uuid, kind in held.of(GPU_MEM)}
