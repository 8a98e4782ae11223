"""What the search of the site finds first, and how it finds Chinese words.

The theme's search ranks a section by how often it has the words, and sections with them in the heading far above all
others. It takes text apart at `separator` of mkdocs.yml.
"""

import re
from typing import Any

BOOSTS = {
    "problems/": 2.4,
    "problems/#invalididlelabel": 1.4,  # it has the words of Events that operations/#idle-pods explains
    "troubleshooting/": 1.2,
    "migrate/": 0.2,
    "adr/": 0.05,
    "CHANGELOG/": 0.05,
    "zh/": 0.2,
    "README.zh-CN/": 0.2,
}
"""By the beginning of an address: who searches a message at night wants its remedy, not the reason for a decision."""
NAMES = {
    "compare/": "HAMi, KAI, time slicing",
    "operations/#idle-pods": "GPUIdle, GPUIdleEvicted",
    "troubleshooting/#out-of-gpu-memory": "GPUMemoryExhausted",
}
"""By address: names that people search for, which the heading does not have. Results show them with it."""
HAN = "\u4e00-\u9fff"
_HAN_CHARACTER = re.compile(f"[{HAN}]")
ZERO_WIDTH_SPACE = "\u200b"


def adapted(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of `search_index.json`, each with its boost and with Chinese that can be searched."""
    return [_adapted(entry) for entry in entries]


def _adapted(entry: dict[str, Any]) -> dict[str, Any]:
    adapted_entry = dict(entry)
    names = NAMES.get(entry["location"])
    if names:
        adapted_entry["title"] = f"{entry['title']} ({names})"
    for field in ("title", "text"):
        adapted_entry[field] = _with_marked_characters(adapted_entry[field])
    for start, boost in BOOSTS.items():
        if entry["location"].startswith(start):
            adapted_entry["boost"] = boost
    return adapted_entry


def _with_marked_characters(text: str) -> str:
    """The text with an invisible mark after each Chinese character.

    Chinese has no spaces, so the separator makes each character a word of its own. The theme would cut a query along
    the longest words of the index, and drop the last one. With the mark no word of the index is in a query, so the
    separator cuts that, too. Each character is then looked up as the beginning of a word.
    """
    return _HAN_CHARACTER.sub(lambda character: character[0] + ZERO_WIDTH_SPACE, text)
