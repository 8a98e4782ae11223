"""Why one request of a claim has no device: what it wants, what the best node has, and which GPUs are out."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.domain.dra.device_classes import CLASSES, CORE_CLASS, ISOLATED_CLASS, SET_CLASS, SHARE_CLASS, WHOLE_CLASS
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.device_check import Check, Demand, ForAll, Held, Stage, check, for_all
from gpuscheduler.core.explain.out_of_reach import Out
from gpuscheduler.core.explain.published import Device, Version, Word
from gpuscheduler.core.explain.selection import Work, mentioned

_MOST_VALUES = 2

_SHARE_CLASSES = {SHARE_CLASS, ISOLATED_CLASS, CORE_CLASS}


@dataclass(frozen=True, slots=True)
class Funnel:
    """How far each device comes for a request, and the sentence about it.

    Attributes:
        asked: the request.
        checks: of all devices.
        held: what claims have.
        off: node name to why the pod may not be there.
    """

    asked: Demand
    checks: tuple[Check, ...]
    held: Held
    off: Mapping[str, str]

    @property
    def fits_on(self) -> list[str]:
        """Names of the nodes that have enough devices for the request alone."""
        return self._with_enough(Stage.FITS)

    def reason(self) -> str:
        """Why the request has no device; empty if it could have some."""
        if self.fits_on:
            return ""
        return f"wants {self.wants}: {self._why()}"

    @property
    def noun(self) -> str:
        """What the request is about."""
        if self.asked.request.device_class == SET_CLASS:
            return "GPU set"
        drivers = {each.device.key.driver for each in self._from(Stage.NO_CAPACITY)}
        is_of_others = self.is_of_others if not drivers else drivers != {DRA_DRIVER}
        return "device" if is_of_others else "GPU"

    @property
    def is_of_others(self) -> bool:
        """Whether the request names nothing of this project, and selects no device of a node."""
        selected = self._from(Stage.NO_CAPACITY)
        names_us = self.asked.request.device_class in CLASSES
        return not selected and not names_us and not any(DRA_DRIVER in each.text for each in self.asked.conditions)

    @property
    def wants(self) -> str:
        """What the request asks for."""
        request = self.asked.request
        amounts: list[str] = []
        for name, amount in request.amounts.items():
            amounts.append(words.amount_words(name.rpartition("/")[2], amount or 0))
        # Without an amount of its own, a request takes all memory.
        is_whole = not request.amounts.keys() - {"cores"}
        noun = f"whole {self.noun}" if is_whole and self.noun == "GPU" else self.noun
        if not request.count:
            return f"all {noun}s of a node that match"
        devices = words.count_of(request.count, noun)
        if amounts and not is_whole:
            each = words.joined(amounts)
            return f"{each} on one {noun}" if request.count == 1 else f"{each} on each of {devices} of one node"
        return f"a {noun}" if request.count == 1 else f"{devices} on one node"

    # -- the first check that too few devices pass --------------------------------------------------------------------

    def _why(self) -> str:
        stages: Sequence[tuple[Stage, Callable[[], str]]] = (
            (Stage.NO_CAPACITY, self._not_selected),
            (Stage.TOO_SMALL, self._no_capacity),
            (Stage.NOT_ON_NODE, self._too_small),
            (Stage.TAINTED, self._not_on_node),
        )
        for stage, words_of in stages:
            if not self._from(stage):
                return words_of()
        if not self._is_enough(Stage.TAINTED):
            return self._too_few()
        if not self._is_enough(Stage.TAKEN):
            return self._tainted()
        return self._taken()

    def _from(self, stage: Stage) -> list[Check]:
        """The devices that come to this check."""
        return [each for each in self.checks if each.stage >= stage]

    def _at(self, stage: Stage) -> list[Check]:
        """The devices that fail this check."""
        return [each for each in self.checks if each.stage is stage]

    def _by_node(self, stage: Stage) -> Counter[str]:
        return Counter(each.device.node for each in self._from(stage))

    def _with_enough(self, stage: Stage) -> list[str]:
        """Names of the nodes of which enough devices come to this check."""
        counts = self._by_node(stage)
        # A request for all devices of a node needs one at least.
        count = self.asked.request.count or 1
        refusing = set() if self.asked.request.count else self._refusing(stage)
        return [node for node in counts if counts[node] >= count and node not in refusing]

    def _refusing(self, stage: Stage) -> set[str]:
        """Names of the nodes where a request for all devices gets none, because of one that fails an earlier check."""
        earlier = [each for each in self.checks if each.stage < stage]
        return {each.device.node for each in earlier if for_all(self.asked, each, self.held) is ForAll.REFUSES}

    def _is_enough(self, stage: Stage) -> bool:
        return bool(self._with_enough(stage))

    # -- a sentence for each ------------------------------------------------------------------------------------------

    def _not_selected(self) -> str:
        if not self.checks:
            # A class may have no condition that could be named.
            return "no node publishes devices for claims"
        unknown = self._unknown_word()
        if unknown:
            return unknown
        furthest = max(each.met for each in self.checks)
        closest = [each.device for each in self.checks if each.met == furthest]
        condition = self.asked.conditions[furthest]
        count = words.count_of(len(closest), self.noun)
        is_of_shares = condition.device_class in _SHARE_CLASSES
        if is_of_shares and not any(device.is_shared for device in closest):
            # Feature gate DRAConsumableCapacity is off, or no GPU reports its memory.
            return f"of {count} none can be shared: a whole one is of class {WHOLE_CLASS}"
        whose = f" of class {condition.device_class}" if condition.device_class else ""
        values = "; ".join(_values(condition.tree, closest))
        have = f": {values}" if values else ""
        return f"of {count} none meets {words.shown(condition.text)}{whose}{have}"

    def _unknown_word(self) -> str:
        """A name in a selector that no device has; empty without one."""
        known_of = {kind: self._known(kind) for kind in ("attributes", "capacity")}
        for condition in self.asked.conditions:
            for name in mentioned(condition.tree):
                known = known_of[name.kind]
                if name.word not in known:
                    return f"{_noun_of(name.kind)} {_unknown(name.word, known, self.noun)}"
        return ""

    def _known(self, kind: str) -> set[Word]:
        """All attributes, or capacities, of devices."""
        known: set[Word] = set()
        for each in self.checks:
            known.update(each.device.attributes if kind == "attributes" else each.device.capacity)
        return known

    def _no_capacity(self) -> str:
        word = next(each.word for each in self._at(Stage.NO_CAPACITY) if each.word)
        known: set[Word] = set()
        for each in self._at(Stage.NO_CAPACITY):
            known.update(each.device.capacity)
        return f"capacity {_unknown(word, known, self.noun)}"

    def _too_small(self) -> str:
        checks = self._at(Stage.TOO_SMALL)
        counts = Counter(each.word for each in checks if each.word)
        [(word, _)] = counts.most_common(1)
        with_word = [each.device for each in checks if word in each.device.capacity]
        largest = max(with_word, key=_most_of(word))
        most = words.amount_words(word.name, largest.capacity[word].most)
        return f"the largest {self.noun} has {most}, such as {largest.title}"

    def _not_on_node(self) -> str:
        checks = self._at(Stage.NOT_ON_NODE)
        nodes = sorted({each.device.node for each in checks})
        nodes_by_reason: dict[str, list[str]] = {}
        for node in nodes:
            nodes_by_reason.setdefault(self.off[node], []).append(node)
        reasons = []
        for reason, those in nodes_by_reason.items():
            reasons.append(f"{len(those)} node(s) {reason} ({words.some(those)})")
        devices_have = words.count_are(len(checks), self.noun, "has", "have")
        return f"{devices_have} as much, and the pod may not be on the nodes: {'; '.join(reasons)}"

    def _too_few(self) -> str:
        node, count = self._best(Stage.TAINTED)
        return f"no node where it may be has more than {words.count_of(count, f'such {self.noun}')}, as {node} has"

    def _tainted(self) -> str:
        if self.asked.request.count == 1:
            return f"none can be used now: {self._out.tainted}"
        node, count = self._best(Stage.TAKEN)
        usable = words.count_of(count, f"usable {self.noun}")
        where = f", such as {node}" if node else ""
        return f"a node has at most {usable}{where}: {self._out.tainted}"

    def _taken(self) -> str:
        out = self._out.all_words
        end = f"; {out}" if out else ""
        if self.asked.request.count == 1:
            return f"{self._most_free()}{end}"
        node, count = self._best(Stage.FITS)
        if not count:
            return f"{self._most_free()}{end}"
        is_share = "memory" in self.asked.request.amounts
        devices = words.count_of(count, self.noun if is_share else f"unused {self.noun}")
        free = " with as much free" if is_share else ""
        return f"a node has at most {devices}{free}, such as {node}{end}"

    def _most_free(self) -> str:
        taken = self._at(Stage.TAKEN)
        word = self._short_of()
        if word is not None and word.name == "sharers":
            _, device = self._roomiest(word, taken)
            # Its most claims share the GPU, or the node spreads them and holds the GPU back for now.
            takes_none = f"takes no further claim on that {self.noun} at the moment"
            return f"where enough memory is free, the node {takes_none}, such as {device.title}"
        if word is None:
            shared = sum(self.held.holders(each.device) > 0 for each in taken)
            in_sets = sum(self.held.is_in_held_set(each.device) for each in taken)
            parts = [f"{words.count_are(shared, self.noun, 'is', 'are')} in use"] if shared else []
            if in_sets:
                parts.append(f"{words.count_are(in_sets, self.noun, 'is', 'are')} in use with linked ones")
            return f"none is free: {' and '.join(parts)}"
        most, device = self._roomiest(word, taken)
        free = words.amount_words(word.name, most)
        if not most:
            return f"nothing is free: {words.count_are(len(taken), self.noun, 'is', 'are')} in use"
        if word.name == "memory":
            return f"most free is {free}, on {device.title}"
        return f"where enough memory is free, most free is {free}, on {device.title}"

    @property
    def _out(self) -> Out:
        return Out(self.asked, self.checks, self.held, self.noun)

    def _short_of(self) -> Word | None:
        """The capacity to tell of: what those devices lack that have enough of all before it."""
        if "memory" not in self.asked.request.amounts:
            return None
        short = [each.word for each in self._at(Stage.TAKEN) if each.word]
        others = [word for word in short if word.name != "memory"]
        if others:
            [(word, _)] = Counter(others).most_common(1)
            return word
        return short[0] if short else None

    def _roomiest(self, word: Word, checks: Sequence[Check]) -> tuple[int, Device]:
        devices = [each.device for each in checks if each.word == word]
        roomiest = max(devices, key=lambda device: self.held.free(device, word))
        return self.held.free(roomiest, word), roomiest

    def _best(self, stage: Stage) -> tuple[str, int]:
        """The node with most devices that come to a check, and how many these are."""
        counts = self._by_node(stage)
        if not counts:
            return "", 0
        # Of equal numbers, the node with the first name.
        name = max(sorted(counts), key=lambda name: counts[name])
        return name, counts[name]


def funnel(asked: Demand, devices: Sequence[Device], held: Held, off: Mapping[str, str], work: Work) -> Funnel:
    """How far each device comes for a request."""
    checks = tuple(check(asked, device, held, off, work) for device in devices)
    return Funnel(asked, checks, held, off)


def unknown_attribute(attribute: Word, devices: Sequence[Device]) -> str:
    """That no device has the attribute; empty if one has."""
    known: set[Word] = set()
    for device in devices:
        known.update(device.attributes)
    if attribute in known:
        return ""
    return f"attribute {_unknown(attribute, known, 'GPU')}"


def _unknown(word: Word, known: set[Word], noun: str) -> str:
    """That no device has the attribute or capacity, and which was probably meant."""
    in_domain = {other.name for other in known if other.domain == word.domain}
    if in_domain:
        meant = words.did_you_mean(word.name, in_domain)
    else:
        meant = words.did_you_mean(word.domain, {other.domain for other in known})
    return f"{words.shown(str(word))} is on no {noun}{meant}"


def _noun_of(kind: str) -> str:
    return "attribute" if kind == "attributes" else "capacity"


def _values(tree: object, devices: Sequence[Device]) -> Iterator[str]:
    """The attributes in a condition with the values that devices have of them."""
    for name in dict.fromkeys(mentioned(tree)):  # type: ignore[arg-type]
        if name.kind != "attributes":
            continue
        values: set[str] = set()
        for device in devices:
            if name.word in device.attributes:
                values.add(_value_words(device.attributes[name.word]))
        if values:
            few = sorted(values)
            yield f"{name.word.name} is {words.shown(' or '.join(few[:_MOST_VALUES]))}"


def _value_words(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case Version():
            return ".".join(map(str, value))
        case _:
            return str(value)


def _most_of(word: Word) -> Callable[[Device], int]:
    return lambda device: device.capacity[word].most
