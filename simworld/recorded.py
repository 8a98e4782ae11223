"""`python -m simworld.recorded DIR`: hold what a real cluster did against the promises of the simulated one.

End-to-end runs keep a recording of each node: its pods as the API server showed them, what kubelet's checkpoint says
that containers were given, and which containers ran at one moment. What cannot be known is left out, and counted: a
container that was given nothing by a device plugin of this project, one whose pod came while no watch was open, and one
that began and ended between two looks.

A broken promise fails the run, so only what is certain is one. `lifetimes` knows when kubelet may give the units of a
pod away while its containers run. One of these cases is known, a deletion by force. The others are doubts: they are
told, and fail nothing.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.domain.sharing.units import parse_id
from simworld.history import MEMORY, Entry, History, Living, conflicts
from simworld.lifetimes import ALLOCATION, CORE_ALLOCATION, Excuse, Lifetimes, Line
from standin.kubelet.pods import Granted

PATTERN = "**/recorded-*.jsonl"
STORY = 40
"""Entries of the history that are shown before the first broken promise."""


@dataclass(slots=True)
class RecordedHistory(History):
    """A history whose time is that of the recording.

    Attributes:
        at: seconds, as the recording counts them.
        lifetimes: of the pods.
        asks: units of memory that each container of a pod asks for, by UID, in the order of the pod.
        numbers: place of each container in its pod, by UID and name.
        excused: pairs of pods, by UID: the units of the first were given to the second, while a container of the first
            still ran. That breaks no promise, or it is not certain that it does.
        doubts: what may have broken a promise, in words.
    """

    at: float = 0.0
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    asks: dict[str, list[int]] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    excused: dict[tuple[str, str], Excuse] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def note(self, actor: str, what: str) -> None:
        self.entries.append(Entry(self.at - self.began_at, actor, what))

    def neighbors(self, living: Living) -> Iterator[Living]:
        for other in self.on_node(living.node):
            # A container may also start late, when its pod is gone already.
            if not (self._is_left_behind(other, living) or self._is_left_behind(living, other)):
                yield other

    def doubt(self, what: str) -> None:
        """Note that a promise may have been broken."""
        self.doubts.append(what)
        self.note("checker", f"DOUBT: {what}")

    def _is_left_behind(self, old: Living, new: Living) -> bool:
        """Whether kubelet may have given units of a pod to another one while the first one still runs."""
        pair = old.pod_uid, new.pod_uid
        if old.pod_uid == new.pod_uid:
            return False
        excuse = self.lifetimes.excuse(*pair, self.at)
        if excuse is None:
            return False
        shares_units = any(conflicts(new, iter([old])))
        if shares_units and pair not in self.excused:
            self.excused[pair] = excuse
            self._note_excuse(old, new, excuse)
        return True

    def _note_excuse(self, old: Living, new: Living, excuse: Excuse) -> None:
        former = self.name(old.pod_uid)
        what = f"{former}, which {excuse.value}, runs beside {self.name(new.pod_uid)}, which has units of it"
        if excuse is Excuse.FORCED:
            self.note("checker", what)
        else:
            self.doubt(what)

    def _contradicts_decision(self, living: Living) -> str:
        uid = living.pod_uid
        number = self.numbers.get((uid, living.container))
        indexes = living.env.get("ALIYUN_COM_GPU_MEM_IDX")
        if number is None or indexes is None:
            return ""
        annotations = self.decisions.get(uid, {})
        decided_gpus = _decided(annotations, self.asks[uid]).get(number)
        if decided_gpus is None:
            return ""
        # Schedulers name GPUs by their numbers or by their UUIDs.
        names_of_its_gpus = (set(indexes.split(",")), set(living.gpus))
        if decided_gpus in names_of_its_gpus:
            return ""
        container = f"{self.name(uid)}/{living.container}"
        text = annotations[ALLOCATION]
        problem = f"{container} got GPU {indexes}, and the scheduler decided {text}"
        if uid in self.lifetimes.edited:
            self.doubt(f"{problem}, which was edited before kubelet admitted the pod")
            return ""
        return problem


def _decided(annotations: Mapping[str, str], asks: Sequence[int]) -> dict[int, set[str]]:
    """Names of the GPUs that annotations decide for each container, by its place in the pod.

    Empty if they are no decision: they are of another amount, or contradict each other. The agent then chooses.
    """
    try:
        memory = _by_container(annotations.get(ALLOCATION, "{}"))
        cores = _by_container(annotations.get(CORE_ALLOCATION, "{}"))
    except (ValueError, TypeError, AttributeError):
        return {}
    decided = {number: set(gpus) for number, gpus in memory.items()}
    decided_amounts = {number: sum(gpus.values()) for number, gpus in memory.items()}
    asked_amounts = {number: units for number, units in enumerate(asks) if units}
    if decided_amounts != asked_amounts:
        return {}
    for number, gpus in cores.items():
        if set(gpus) != decided.get(number, set()):
            return {}
    return decided


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

    def __init__(self, name: str, lifetimes: Lifetimes | None = None) -> None:
        self.history = RecordedHistory(0.0, lifetimes=lifetimes or Lifetimes())
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
        self.checked.left_behind = list(self.history.excused.values()).count(Excuse.FORCED)

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
        entries = self.history.entries
        broken = [number for number, entry in enumerate(entries) if entry.what.startswith("BROKEN")]
        first = broken[0]
        begin = max(0, first - STORY)
        told = [*range(begin, first), *broken]
        return [str(entries[number]) for number in told]

    # -- pods -----------------------------------------------------------------------------------------------------

    def _see_pod(self, line: Line) -> None:
        """A pod as it is now. What differs from its former line has just happened."""
        uid = line["uid"]
        before = self._pods.get(uid)
        self._pods[uid] = line
        self._learn_request(line)
        shown = f"{line['name']} ({uid[:8]})"
        if before is None:
            self.history.note("user", f"creates {shown}: {_asks(line)}")
        is_new_binding = line["node"] and not (before and before["node"])
        if is_new_binding:
            self._see_binding(line)
        is_new_phase = before is None or line["phase"] != before["phase"]
        if is_new_phase:
            self._see_phase(line)
        if line["gone"]:
            self.history.note("api server", f"{shown} is gone")

    def _learn_request(self, line: Line) -> None:
        """The pod's name, and what each of its containers asks for."""
        uid = line["uid"]
        self.history.pods[uid] = line["name"]
        self.history.asks[uid] = [container["asks"].get(MEMORY, 0) for container in line["containers"]]
        for number, container in enumerate(line["containers"]):
            self.history.numbers[uid, container["name"]] = number

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
            self._see_end(uid, container)
        for started in line["started"]:
            self._see_start(started["uid"], started["container"], started["env"])

    def _see_end(self, uid: str, container: str) -> None:
        ended = self.history.living.pop((uid, container), None)
        # A container without devices of this project did not live in the history.
        if ended is None:
            return
        pod = self.history.name(uid)
        self.history.note(f"{self._name} kubelet", f"ended {pod}/{container}")

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
        spec = next((spec for spec in all_containers if spec["name"] == living.container), None)
        if spec is None:
            self.checked.skipped["of a container that was not seen"] += 1
            return
        for resource, amount in spec["asks"].items():
            got = len(living.units.get(resource, ()))
            if resource in living.units and got != amount:
                yield f"asks for {amount} {resource} and got {got}"
        for name, value in living.env.items():
            # A container may set such a variable for itself, and then it has its own value.
            if name not in spec["sets"] and env.get(name) != value:
                yield f"was to have {name}={value!r}, and has {env.get(name)!r}"


def oversold(new: Living, all_living: Iterable[Living]) -> Iterator[str]:
    """GPUs of which living containers were given more memory than there is."""
    neighbors = [memory_by_gpu(living) for living in all_living]
    for gpu, memory in memory_by_gpu(new).items():
        shares = [shares[gpu] for shares in neighbors if gpu in shares]
        # An agent that was restarted with other units gives other sizes.
        amounts = [share.amount for share in shares if share.whole == memory.whole]
        total = sum(amounts)
        if total > memory.whole:
            yield f"is the last of {len(amounts)} containers with {total} of {memory.whole} units of {gpu} together"


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Units of memory of one GPU that a container has, and those that the GPU has."""

    amount: int
    whole: int


def memory_by_gpu(living: Living) -> dict[str, MemoryShare]:
    """What a container has of the memory of each of its GPUs, by the agent's answer; empty if it shares none."""
    gpus = living.gpus
    amounts = _numbers(living.env.get("ALIYUN_COM_GPU_MEM_CONTAINER", ""))
    sizes = _numbers(living.env.get("ALIYUN_COM_GPU_MEM_DEV", ""))
    # What is equal for all GPUs stands there once.
    if len(amounts) == 1:
        amounts *= len(gpus)
    if len(sizes) == 1:
        sizes *= len(gpus)
    is_known = len(amounts) == len(sizes) == len(gpus)
    if not is_known:
        # Only some of the GPUs are of equal size, and it is not known which.
        return {}
    shares = map(MemoryShare, amounts, sizes)
    return dict(zip(gpus, shares, strict=True))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _asks(line: Line) -> str:
    texts = []
    for container in line["containers"]:
        amounts = ", ".join(f"{amount} {resource}" for resource, amount in container["asks"].items())
        texts.append(f"{container['name']} asks for {amounts or 'no GPU'}")
    return "; ".join(texts)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a recording. The last one may be cut off, if the run was killed. ValueError: another one is."""
    with path.open(encoding="utf-8") as recording:
        for text in recording:
            if text.endswith("\n"):
                yield json.loads(text)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a recording says.

    Attributes:
        words: what was checked.
        doubts: what may have broken a promise; it is not certain.
        story: entries up to the first broken promise, and the others; empty if none was broken.
    """

    words: str
    doubts: Sequence[str]
    story: Sequence[str]

    def lines(self) -> Iterator[str]:
        """All of it for people."""
        yield self.words
        for doubt in self.doubts:
            yield f"not certain, so no failure: {doubt}"
        if self.story:
            yield "a promise was broken in this run:"
            yield from self.story


def check(path: Path) -> Verdict:
    """Check one recording."""
    node = RecordedNode("node", Lifetimes.of(read_lines(path)))
    node.read(read_lines(path))
    return Verdict(f"{path}: {node.checked.words()}", node.history.doubts, node.story())


def main(arguments: list[str]) -> int:
    """Check each recording below folders.

    Returns:
        The exit status: 1 for a broken promise, 2 if there is no recording or one is damaged.
    """
    recordings = sorted(path for argument in arguments for path in Path(argument).glob(PATTERN))
    if not recordings:
        print(f"no recording below {' '.join(arguments) or 'no folder'}: name a folder of an end-to-end run")
        return 2
    is_broken = False
    is_unreadable = False
    for path in recordings:
        try:
            verdict = check(path)
        except (ValueError, KeyError, TypeError) as error:
            is_unreadable = True
            print(f"{path} is not a recording, or is damaged, so it is not checked: {type(error).__name__}: {error}")
            continue
        for line in verdict.lines():
            print(line)
        is_broken = is_broken or bool(verdict.story)
    if is_broken:
        return 1
    return 2 if is_unreadable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
