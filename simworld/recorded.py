"""`python -m simworld.recorded DIR`: hold what a real cluster did against the promises of the simulated one.

End-to-end runs keep a recording of each node: its pods as the API server showed them, what kubelet's checkpoint says
that containers were given, and which containers ran at one moment. What cannot be known is left out, and counted: a
container that was given nothing by a device plugin of this project, one whose pod came while no watch was open, and one
that began and ended between two looks.

One thing is known and breaks no promise: kubelet gives the units of a pod away as soon as the pod is gone from the API
server. If it was deleted by force, its containers run on for as long as its grace period, beside those of the next pod.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.units import UnitId, parse_id
from simworld.history import ALLOCATION, MEMORY, Entry, History, Living, conflicts
from standin.kubelet.pods import Granted

Line = dict[str, Any]
"""One thing that was recorded: `at` in seconds, `kind`, and what belongs to the kind."""
PATTERN = "**/recorded-*.jsonl"
STORY = 40
"""Entries of the history that are shown before the first broken promise."""


_CORE_DECISION = "gpushare.alibabacloud.com/core-percentage"
_ENDED = frozenset({"Succeeded", "Failed"})
_KILL_S = 60.0
"""Seconds, beside its grace period, that kubelet may need to end the containers of a pod: it may restart meanwhile."""
_GRACE_S = 30.0
"""What the API server writes into a pod that names no grace period."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """How a pod went from the API server.

    Attributes:
        line: number of the line that says so. The API server tells all pods in order, and this order counts, because
            what is recorded of the node may come earlier or later.
        at: when this line was recorded, in seconds.
        grace_s: seconds that kubelet gives the pod's containers to end.
    """

    line: int
    at: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What a whole recording says of the lives of pods. The reader needs it in advance, because watches are late.

    Attributes:
        forced: pods that were gone while kubelet had not reported that they had ended, by UID. Kubelet deletes a pod
            only after it has reported that.
        unseen: pods that went while no watch was open, by UID. Nobody knows how.
        admitted: the first line, by UID, after which kubelet had admitted or refused the pod.
    """

    forced: Mapping[str, Deletion] = field(default_factory=dict)
    unseen: Mapping[str, Deletion] = field(default_factory=dict)
    admitted: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Self:
        forced = {}
        unseen = {}
        admitted: dict[str, int] = {}
        for number, line in enumerate(lines):
            if line["kind"] != "pod":
                continue
            uid = line["uid"]
            is_waiting = line["phase"] in ("", "Pending") and not line["gone"]
            if not is_waiting:
                admitted.setdefault(uid, number)
            if not line["gone"]:
                continue
            deletion = Deletion(number, line["at"], line.get("grace_s", _GRACE_S))
            if line["listed"]:
                unseen[uid] = deletion
            elif line["phase"] not in _ENDED:
                forced[uid] = deletion
        return cls(forced, unseen, admitted)

    def may_be_left_behind(self, old: str, new: str, at: float) -> bool:
        """Whether kubelet may have given a pod's units to a new one while containers of the old one run on."""
        deletion = self.forced.get(old) or self.unseen.get(old)
        if deletion is None:
            return False
        # Kubelet has seen the deletion before it admits the next pod, and says that it runs after that.
        is_before = deletion.line < self.admitted.get(new, deletion.line + 1)
        is_in_time = at <= deletion.at + deletion.grace_s + _KILL_S
        return is_before and is_in_time


@dataclass(slots=True)
class RecordedHistory(History):
    """A history whose time is that of the recording.

    Attributes:
        at: seconds, as the recording counts them.
        lifetimes: of the pods.
        asks: units of memory that each container of a pod asks for, by UID, in the order of the pod.
        numbers: place of each container in its pod, by UID and name.
        left_behind: UIDs of pairs of pods: the units of the first were given to the second, while a container of the
            first still ran.
        unknown: the same, but nobody knows how the first one was deleted.
    """

    at: float = 0.0
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    asks: dict[str, list[int]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    left_behind: set[tuple[str, str]] = field(default_factory=set)
    unknown: set[tuple[str, str]] = field(default_factory=set)

    def note(self, actor: str, what: str) -> None:
        self.entries.append(Entry(self.at - self.began_at, actor, what))

    def neighbors(self, living: Living) -> Iterator[Living]:
        for other in self.on_node(living.node):
            # A container may also start late, when its pod is gone already.
            if not (self._is_left_behind(other, living) or self._is_left_behind(living, other)):
                yield other

    def _is_left_behind(self, old: Living, new: Living) -> bool:
        pair = old.pod_uid, new.pod_uid
        if old.pod_uid == new.pod_uid or not self.lifetimes.may_be_left_behind(*pair, self.at):
            return False
        pairs = self.left_behind if old.pod_uid in self.lifetimes.forced else self.unknown
        shares_units = any(conflicts(new, iter([old])))
        if shares_units and pair not in pairs:
            pairs.add(pair)
            name = self.name(old.pod_uid)
            self.note(
                "checker", f"{name} is gone, kubelet gave its units to {self.name(new.pod_uid)}, and it still runs"
            )
        return True

    def _contradicts_decision(self, living: Living) -> str:
        annotations = self.decisions.get(living.pod_uid, {})
        number = self.numbers.get((living.pod_uid, living.container))
        indexes = living.env.get("ALIYUN_COM_GPU_MEM_IDX")
        if number is None or indexes is None:
            return ""
        decided = _decided(annotations, self.asks[living.pod_uid]).get(number)
        # Schedulers name GPUs by their numbers or by their UUIDs.
        if decided is None or decided in (set(indexes.split(",")), set(living.gpus)):
            return ""
        name = self.name(living.pod_uid)
        text = annotations[ALLOCATION]
        return f"{name}/{living.container} got GPU {indexes}, and the scheduler decided {text}"


def _decided(annotations: Mapping[str, str], asks: Sequence[int]) -> dict[int, set[str]]:
    """Names of the GPUs that annotations decide for each container, by its place in the pod.

    Empty if they are no decision: they are of another amount, or contradict each other. The agent then chooses.
    """
    try:
        memory = _by_container(annotations.get(ALLOCATION, "{}"))
        cores = _by_container(annotations.get(_CORE_DECISION, "{}"))
    except (ValueError, TypeError, AttributeError):
        return {}
    totals = {number: sum(gpus.values()) for number, gpus in memory.items()}
    if totals != {number: units for number, units in enumerate(asks) if units}:
        return {}
    if any(set(gpus) != set(memory.get(number, ())) for number, gpus in cores.items()):
        return {}
    return {number: set(gpus) for number, gpus in memory.items()}


def _by_container(text: str) -> dict[int, dict[str, int]]:
    """Amounts by GPU, by the place of the container. Raises ValueError, TypeError, AttributeError."""
    shares: dict[int, dict[str, int]] = {}
    for number, gpus in json.loads(text).items():
        shares[int(number)] = {gpu: int(amount) for gpu, amount in gpus.items()}
    return shares


@dataclass(slots=True)
class Checked:
    """Counts of what was checked, so that an empty check is seen.

    Attributes:
        grants: amounts of a resource that kubelet has given to a container that ran.
        containers: containers that ran with them.
        pods: of those containers.
        decisions: containers whose pod a scheduler had decided.
        samples: moments at which the running containers were looked at.
        left_behind: pods that got units of a pod that was deleted by force and still ran.
        skipped: containers that were left out, by reason.
    """

    grants: int = 0
    containers: int = 0
    pods: set[str] = field(default_factory=set)
    decisions: int = 0
    samples: int = 0
    left_behind: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def words(self) -> str:
        """All of it in one line."""
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return (
            f"checked {self.grants} grants of {self.containers} containers in {len(self.pods)} pods, "
            f"{self.decisions} with a scheduler's decision, at {self.samples} moments; "
            f"{self.left_behind} pods began beside one that was deleted by force; left out: {left_out or 'none'}"
        )


class RecordedNode:
    """Reads the recording of one node, from its first line to its last.

    Args:
        name: of the node.
        lifetimes: of its pods. Without them, each deletion is one that waits for the pod's containers.

    Attributes:
        history: what happened, and what was broken.
        checked: what was checked.
    """

    def __init__(self, name: str, lifetimes: Lifetimes = Lifetimes()) -> None:
        self.history = RecordedHistory(0.0, lifetimes=lifetimes)
        self.checked = Checked()
        self._name = name
        self._pods: dict[str, Line] = {}
        self._books: dict[tuple[str, str], Granted] = {}
        self._readers: dict[str, Callable[[Line], None]] = {
            "pod": self._see_pod,
            "given": self._see_given,
            "running": self._see_running,
        }

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if not self.history.began_at:
                self.history.began_at = line["at"]
            self.history.at = line["at"]
            self._readers[line["kind"]](line)
        self.checked.left_behind = len(self.history.left_behind)
        if self.history.unknown:
            self.checked.skipped["beside a pod whose deletion was not seen"] = len(self.history.unknown)

    def forget(self, uid: str) -> None:
        """Forget a pod that has ended, for a run that has no end."""
        self._pods.pop(uid, None)
        self.history.pods.pop(uid, None)
        self.history.decisions.pop(uid, None)
        self.history.asks.pop(uid, None)
        for key in [key for key in self._books if key[0] == uid]:
            del self._books[key]

    def story(self) -> list[str]:
        """Entries up to the first broken promise, and the others that were broken; empty if none was."""
        if not self.history.broken:
            return []
        texts = [str(entry) for entry in self.history.entries]
        first = next(number for number, text in enumerate(texts) if "BROKEN" in text)
        others = [text for text in texts[first + 1 :] if "BROKEN" in text]
        return [*texts[max(0, first - STORY) : first + 1], *others]

    # -- pods -----------------------------------------------------------------------------------------------------

    def _see_pod(self, line: Line) -> None:
        uid = line["uid"]
        before = self._pods.get(uid)
        self._pods[uid] = line
        self.history.pods[uid] = line["name"]
        self.history.asks[uid] = [container["asks"].get(MEMORY, 0) for container in line["containers"]]
        for number, container in enumerate(line["containers"]):
            self.history.numbers[uid, container["name"]] = number
        if before is None:
            self.history.note("user", f"creates {line['name']} ({uid[:8]}): {_asks(line)}")
        was_bound = before is not None and bool(before["node"])
        if line["node"] and not was_bound:
            self._see_binding(line)
        phase_before = None if before is None else before["phase"]
        if line["phase"] != phase_before:
            self._see_phase(line)
        if line["gone"]:
            self.history.note("api server", f"{line['name']} ({uid[:8]}) is gone")

    def _see_binding(self, line: Line) -> None:
        self.history.note("scheduler", f"binds {line['name']}")
        # Behind a gap of the watch, the annotations may have been edited since.
        if not line["listed"]:
            self.history.decided(line["uid"], line["annotations"])

    def _see_phase(self, line: Line) -> None:
        name = line["name"]
        message = line["message"]
        self.history.note("kubelet", f"{name}: {line['phase']} {line['reason']} {message}".rstrip())
        is_refused = line["reason"] == "UnexpectedAdmissionError" and line.get("by_kubelet", True)
        if is_refused and not message:
            self.history.break_promise(f"{name} was refused without a reason")

    # -- containers -----------------------------------------------------------------------------------------------

    def _see_given(self, line: Line) -> None:
        """Kubelet has given a container all of this; it replaces what it had given before."""
        ids: dict[str, frozenset[str]] = {}
        env: dict[str, str] = {}
        for resource, given in line["resources"].items():
            ids[resource] = frozenset(given["ids"])
            env |= given["env"]
        self._books[line["uid"], line["container"]] = Granted(ids, env, (), (), {}, ())

    def _see_running(self, line: Line) -> None:
        """Containers that ended since the last look, and those that run now and did not then."""
        self.checked.samples += 1
        for uid, container in line["ended"]:
            if self.history.living.pop((uid, container), None) is not None:
                self.history.note(f"{self._name} kubelet", f"ended {self.history.name(uid)}/{container}")
        for started in line["started"]:
            self._see_start(started["uid"], started["container"], started["env"])

    def _see_start(self, uid: str, container: str, env: Mapping[str, str]) -> None:
        granted = self._books.get((uid, container))
        if granted is None:
            self.checked.skipped["without devices of a plugin"] += 1
            return
        units = [parse_id(unit) for ids in granted.ids.values() for unit in ids]
        if None in units:
            self.checked.skipped["with another plugin's devices"] += 1
            return
        self.checked.grants += len(granted.ids)
        self.checked.containers += 1
        self.checked.pods.add(uid)
        self.checked.decisions += ALLOCATION in self.history.decisions.get(uid, {})
        self.history.started(self._name, uid, container, granted)
        living = self.history.living[uid, container]
        problems = (
            *contradicts_units(living, [unit for unit in units if unit]),
            *self._contradicts_pod(living, env),
            *oversold(living, self.history.neighbors(living)),
        )
        for problem in problems:
            self.history.break_promise(f"{self.history.name(uid)}/{container} {problem}")

    def _contradicts_pod(self, living: Living, env: Mapping[str, str]) -> Iterator[str]:
        """What differs from the pod's request, and from what the process really has."""
        pod = self._pods.get(living.pod_uid)
        if pod is None:
            self.checked.skipped["of a pod that was not seen"] += 1
            return
        all_containers = (*pod["containers"], *pod["init"])
        spec = next(spec for spec in all_containers if spec["name"] == living.container)
        for resource, amount in spec["asks"].items():
            got = len(living.units.get(resource, ()))
            if resource in living.units and got != amount:
                yield f"asks for {amount} {resource} and got {got}"
        for name, value in living.env.items():
            # A container may set such a variable for itself, and then it has its own value.
            if name not in spec["sets"] and env.get(name) != value:
                yield f"was to have {name}={value!r}, and has {env.get(name)!r}"


def contradicts_units(living: Living, units: Iterable[UnitId]) -> Iterator[str]:
    """What the environment says of GPUs that kubelet's units do not say."""
    booked = {unit.gpu_key for unit in units}
    said = {key_of(gpu) for gpu in living.gpus}
    if booked != said:
        visible = living.env.get("NVIDIA_VISIBLE_DEVICES")
        yield f"has units of {sorted(booked)}, and NVIDIA_VISIBLE_DEVICES={visible!r} names {sorted(said)}"


def oversold(new: Living, all_living: Iterator[Living]) -> Iterator[str]:
    """GPUs of which living containers were given more memory than there is."""
    whole = new.env.get("ALIYUN_COM_GPU_MEM_DEV")
    if whole is None:
        return
    neighbors = [living for living in all_living if living.env.get("ALIYUN_COM_GPU_MEM_DEV") == whole]
    for gpu in new.gpus:
        amounts = [int(living.env["ALIYUN_COM_GPU_MEM_CONTAINER"]) for living in neighbors if gpu in living.gpus]
        if sum(amounts) > int(whole):
            yield f"is the last of {len(amounts)} containers with {sum(amounts)} of {whole} units of {gpu} together"


def _asks(line: Line) -> str:
    texts = []
    for container in line["containers"]:
        amounts = ", ".join(f"{amount} {resource}" for resource, amount in container["asks"].items())
        texts.append(f"{container['name']} asks for {amounts or 'no GPU'}")
    return "; ".join(texts)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a recording. The last one may be cut off, if the run was killed."""
    with path.open(encoding="utf-8") as recording:
        for text in recording:
            if text.endswith("\n"):
                yield json.loads(text)


def check(path: Path) -> tuple[str, list[str]]:
    """Check one recording. Returns what was checked in words, and the story if a promise was broken."""
    node = RecordedNode("node", Lifetimes.of(read_lines(path)))
    node.read(read_lines(path))
    return node.checked.words(), node.story()


def main(arguments: list[str]) -> int:
    """Check each recording below folders, and return the exit status: 1 for a broken promise, 2 for no recording."""
    recordings = sorted(path for argument in arguments for path in Path(argument).glob(PATTERN))
    if not recordings:
        print(f"no recording below {' '.join(arguments) or 'no folder'}: name a folder of an end-to-end run")
        return 2
    is_broken = False
    for path in recordings:
        words, story = check(path)
        print(f"{path}: {words}")
        for entry in story:
            print(entry)
        is_broken = is_broken or bool(story)
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
