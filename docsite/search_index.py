"""What the search of the site finds first, and how it finds names and Chinese words.

The theme's search is lunr in a worker. It takes text apart at `separator` of mkdocs.yml, and ranks a section by how
many of the query's words it has, how rare they are, and in which field. `search_query.js` turns what people type into
such words; what both must agree on is named in both.
"""

import html
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

HEADING_WEIGHT = 6
"""How much more a word counts in a heading than in the text below it."""
WHOLE_PAGE = 0.7
"""Of what stands above a page's first section. The theme counts it up to 2.5 times as much as a section."""
FIELDS = {
    "title": HEADING_WEIGHT,
    "title_names": HEADING_WEIGHT,
    "text": 1,
    "text_names": 1,
    "tags": HEADING_WEIGHT,
}
BOOSTS = {
    "problems/#": 1.5,
    "problems/#fence": 0.8,  # operations/#fencing-a-gpu says how to fence one
    "problems/#invalididlelabel": 1.0,  # it has the words of Events that operations/#idle-pods explains
    "troubleshooting/#": 1.5,
    "troubleshooting/": 0.5,  # its table has the words of every section
    "reference/": 0.5,
    "reference/chart-values/": 0.6,
    "examples/": 0.6,
    "installer/": 0.7,  # of cGPU alone
    "platforms/#": 1.2,
    "migrate/": 0.5,
    "zh/": 0.5,
    # For people who change gpuagent.
    "adr/": 0.1,
    "architecture/": 0.3,
    "benchmarks/": 0.2,
    "CHANGELOG/": 0.1,
    "CONTRIBUTING/": 0.3,
    "first-change/": 0.5,
    "gpu-check/": 0.3,
    "how-we-test/": 0.3,
    "reference/container-environment/": 0.3,
    "reference/contract/": 0.1,
    "reference/kubernetes-dra-tests/": 0.1,
    "reference/packages/": 0.2,
    "release/": 0.3,
}
"""By the beginning of an address, of which the longest counts: who searches a message at night wants its remedy, not
the reason for a decision."""
NAMES = {
    "compare/": "HAMi, KAI, time slicing",
    "gpuscheduler/#two-schedulers": "taint, tolerations",
    "gpuscheduler/#jobs": "gang scheduling",
    "image/#without-a-registry-behind-a-proxy": "airgap, air-gapped, offline",
    "inspect/#health-of-all-nodes": "--health",
    "inspect/#what-would-move": "--defragment",
    "inspect/#who-wastes-memory": "--waste",
    "inspect/#why-one-pod-waits": "--why",
    "gpuscheduler/#which-pods-it-places": "schedulerName",
    "install/#removal": "uninstall",
    "metrics/#use-over-time": "billing, chargeback",
    "modes/#units": "--memory-unit",
    "operations/#changing-the-mode-of-a-node": "mode switch",
    "operations/#idle-pods": "GPUIdle, GPUIdleEvicted",
    "operations/#simulated-boxes": "--simulate",
    "problems/": "GPUAgentReady",
    "problems/#gpuunhealthy": "GPU is lost",
    "topology/": "NVLink",
    "try-it/": "without a GPU, fake GPUs",
    "troubleshooting/#out-of-gpu-memory": "GPUMemoryExhausted",
    "troubleshooting/#pod-stays-pending": "Insufficient aliyun.com/gpu-mem",
    "troubleshooting/#the-agents-pod-does-not-start": "ImagePullBackOff",
    "zh/modes/#share": "共享",
}
"""By address: names that people search for, which the heading does not have. Results show them with it."""
MARK = "\u02b7"
"""Begins each joined name, so that the beginning of a word such as `gpu` is not the beginning of a name. A letter,
because lunr and the separator leave letters alone."""
LONGEST_NAME = 60
WORDS_OF_MESSAGE = 5
"""From so many words on, a heading that is all quoted is a message."""
_TAG = re.compile(r"<[^>]*>")
_QUOTED_HEADING = re.compile(r"<code>([^<]*)</code>")
_CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/=-]*")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
_HAN_RUN = re.compile("[\u4e00-\u9fff]{2,}")


def adapted(index: dict[str, Any]) -> dict[str, Any]:
    """The index of the theme, `search_index.json`, with weights and with names and Chinese that can be searched."""
    fields = {field: {"boost": float(weight)} for field, weight in FIELDS.items()}
    separator = re.compile(index["config"]["separator"])
    entries = [_adapted(entry, separator) for entry in index["docs"]]
    return index | {"config": index["config"] | {"fields": fields}, "docs": entries}


def _adapted(entry: dict[str, Any], separator: re.Pattern[str]) -> dict[str, Any]:
    """One page or section of the index."""
    title = _title_with_names(entry)
    adapted_entry = entry | {"title": title}
    title_names = joined_names(title, separator)
    title_names += _marked(word_pairs(_plain(title), separator))
    adapted_entry["title_names"] = " ".join(title_names)
    adapted_entry["text_names"] = " ".join(joined_names(entry["text"], separator))
    boost = _boost(entry)
    if boost != 1.0:
        adapted_entry["boost"] = boost
    return adapted_entry


def _title_with_names(entry: dict[str, Any]) -> str:
    title: str = entry["title"]
    names = NAMES.get(entry["location"])
    return f"{title} ({names})" if names else title


def _boost(entry: dict[str, Any]) -> float:
    """How much more the words of an entry count than those of others."""
    location = entry["location"]
    starts = [start for start in BOOSTS if location.startswith(start)]
    boost = BOOSTS[max(starts, key=len)] if starts else 1.0
    is_whole_page = "#" not in location
    if is_whole_page:
        boost *= WHOLE_PAGE
    if _is_message(entry["title"]):
        # The words of a whole sentence say no more than those of a text.
        boost /= HEADING_WEIGHT
    return boost


def _is_message(title: str) -> bool:
    """Whether a heading quotes a message, such as those of refusals, and not one name or a short command."""
    quoted = _QUOTED_HEADING.fullmatch(title)
    return quoted is not None and len(quoted[1].split()) >= WORDS_OF_MESSAGE


def joined_names(markup: str, separator: re.Pattern[str]) -> list[str]:
    """Names of several words as one word each, flags, and pairs of Chinese characters, sorted.

    `ImagePullBackOff`, `gpu-mem` and `aliyun.com/gpu-mem` are also typed as one word, or are rarer than their parts.
    Messages are pasted, so of those that the text quotes each two neighboring words are a name, too. Chinese has no
    spaces, and two characters are mostly a word.
    """
    text = _plain(markup)
    names: set[str] = set()
    for flag in _FLAG.findall(text):
        names.add("flag" + flag.replace("-", ""))
    for run in _RUN.findall(text):
        names |= _names_in(run, separator)
    for quoted in _CODE.findall(markup):
        names |= set(word_pairs(_plain(quoted), separator))
    for han in _HAN_RUN.findall(text):
        names |= set(han_pairs(han))
    return sorted(_marked(names))


def _names_in(run: str, separator: re.Pattern[str]) -> set[str]:
    """The names in text without spaces. `aliyun.com/gpu-mem=8` is searched whole and by what `/` and `=` separate."""
    names = set()
    for name in (run, *run.split("/"), *run.split("=")):
        parts = [part for part in separator.split(name) if part]
        joined = "".join(parts).lower()
        has_several_words = len(parts) > 1
        if has_several_words and len(joined) <= LONGEST_NAME:
            names.add(joined)
    return names


def _marked(names: Iterable[str]) -> list[str]:
    return [MARK + name for name in names]


def word_pairs(text: str, separator: re.Pattern[str]) -> list[str]:
    """Each two neighboring words as one. Pairs with Chinese would be split again."""
    words = [word.lower() for word in separator.split(text) if word]
    pairs = [first + second for first, second in pairwise(words)]
    return [pair for pair in pairs if pair.isascii()]


def han_pairs(text: str) -> list[str]:
    """Each two neighbors among Chinese characters by their code points, because the separator splits characters."""
    code_points = [f"{ord(character):x}" for character in text]
    return [first + second for first, second in pairwise(code_points)]


def _plain(markup: str) -> str:
    """The text of HTML, without its tags."""
    return html.unescape(_TAG.sub(" ", markup))
