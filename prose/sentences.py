"""Sentences of a block, and what the rules find in them."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STYLE = Path(__file__).with_name("style.toml")

_MARKUP = re.compile(
    r"(`+)(?P<code>.+?)\1|!?\[|\](?P<target>\([^)\s]*\)|\[[^\]]*\])|\]|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", re.DOTALL
)
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!vs)[.!?][\0)\"”’']*\s+(?=\0|[(\"“]*[A-Z0-9\x01])")
_WORD = re.compile(r"[A-Za-z0-9\x01]")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern that no sentence may have, and what to write in its place."""

    pattern: re.Pattern[str]
    advice: str


@dataclass(frozen=True, slots=True)
class Style:
    longest_sentence: int
    rules: tuple[Rule, ...]


@cache
def style() -> Style:
    table = tomllib.loads(STYLE.read_text(encoding="utf-8"))
    rules = [Rule(_words(words), f"write {advice!r}") for words, advice in table["instead"].items()]
    rules += [Rule(_words(entry["words"]), entry["advice"]) for entry in table["rule"]]
    rules += [Rule(re.compile(entry["pattern"]), entry["advice"]) for entry in table["sentence"]]
    return Style(table["longest_sentence"], tuple(rules))


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


def sentences(text: str) -> Iterator[str]:
    r"""As they stand in the source. Marks of Markdown are passed over; code is one word."""
    plain, began = _plain(text), 0
    for end in _END.finditer(plain):
        yield text[began : end.end()].strip()
        began = end.end()
    yield text[began:].strip()


def findings(sentence: str) -> Iterator[str]:
    """The faults of a sentence, one line each."""
    words = _plain(sentence).replace("\0", "").split()
    plain, length = " ".join(words), sum(bool(_WORD.search(word)) for word in words)
    if length > style().longest_sentence:
        yield f"{length} words: split the sentence"
    for rule in style().rules:
        if found := rule.pattern.search(plain):
            yield f"'{found[0]}': {rule.advice}"


def _plain(text: str) -> str:
    """The text at its length: markup becomes NUL, code becomes one word of SOH."""

    def blank(found: re.Match[str]) -> str:
        return ("\1" if found["code"] else "\0") * len(found[0])

    return _MARKUP.sub(blank, text)
