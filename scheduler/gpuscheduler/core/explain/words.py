"""Words of the sentences: amounts, numbers of things, names, and what was probably meant."""

from collections.abc import Collection, Iterable, Sequence

from gpuagent.system import likeness

MOST_NAMED = 3
"""Names that a sentence has. It counts the others."""
MOST_COMPARED = 256
"""Names among which one is looked for that is like another one."""
MOST_SHOWN = 80
"""Characters of a text of others that a sentence has."""
_UNITS = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def memory(amount: int) -> str:
    """Bytes as in a claim: ``30Gi``."""
    for unit, size in _UNITS:
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    gib = amount / 2**30
    return f"{gib:.1f}Gi" if amount >= 2**30 else str(amount)


def amount_words(name: str, amount: int) -> str:
    """An amount of a capacity: ``30Gi``, ``30 % of compute``, ``2 of bandwidth``, ``8Gi of mem``."""
    match name:
        case "memory":
            return memory(amount)
        case "cores":
            return f"{amount} % of compute"
    has_binary_unit = amount % 2**10 == 0
    return f"{memory(amount) if has_binary_unit else amount} of {shown(name)}"


def count_of(count: int, noun: str) -> str:
    """A number of things: ``1 GPU``, ``2 GPUs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def count_are(count: int, noun: str, singular: str, plural: str) -> str:
    """A number of things with their verb: ``1 GPU is``, ``2 GPUs are``."""
    return f"{count_of(count, noun)} {singular if count == 1 else plural}"


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    ordered = list(names)
    more = len(ordered) - MOST_NAMED
    text = ", ".join(ordered[:MOST_NAMED])
    return f"{text} and {more} more" if more > 0 else text


def joined(words: Sequence[str]) -> str:
    """Words with commas, and an "and" before the last."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def shown(text: str) -> str:
    """A text of others, in one line and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"


def did_you_mean(written: str, known: Collection[str]) -> str:
    """What was probably meant, after a sentence about an unknown name; else what there is."""
    few = sorted(known)[:MOST_COMPARED]
    if not few:
        return ""
    meant = likeness.did_you_mean(written[:MOST_SHOWN], few)
    if meant:
        return meant
    return f"; there is {some(few)}" if len(few) == 1 else f"; there are {some(few)}"
