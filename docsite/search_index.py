"""What the search of the site finds first, and how it finds names and Chinese words.

The theme's search is lunr in a worker. It takes text apart at `separator` of mkdocs.yml, and ranks a section by how
many of the query's words it has, how rare they are, and in which field. `search_query.js` turns what people type into
such words; what both must agree on is named in both.
"""

import html
import re
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
_TAG = re.compile(r"<[^>]*>")
_PLACEHOLDER = re.compile(r"&lt;[^&]*&gt;")
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
    adapted_entry = dict(entry)
    names = NAMES.get(entry["location"])
    if names:
        adapted_entry["title"] = f"{entry['title']} ({names})"
    for field in ("title", "text"):
        adapted_entry[f"{field}_names"] = " ".join(joined_names(adapted_entry[field], separator))
    heading = word_pairs(_plain(adapted_entry["title"]), separator)
    adapted_entry["title_names"] += "".join(f" {MARK}{pair}" for pair in heading)
    starts = [start for start in BOOSTS if entry["location"].startswith(start)]
    boost = BOOSTS[max(starts, key=len)] if starts else 1.0
    if "#" not in entry["location"]:
        boost *= WHOLE_PAGE
    if _PLACEHOLDER.search(entry["title"]):
        # The template of a message is a whole sentence. Its words say no more than those of a text.
        boost /= HEADING_WEIGHT
    if boost != 1.0:
        adapted_entry["boost"] = boost
    return adapted_entry


def joined_names(markup: str, separator: re.Pattern[str]) -> list[str]:
    """Names of several words as one word each, flags, and pairs of Chinese characters, sorted.

    `ImagePullBackOff`, `gpu-mem` and `aliyun.com/gpu-mem` are also typed as one word, or are rarer than their parts.
    Messages are pasted, so of those that the text quotes each two neighboring words are a name, too. Chinese has no
    spaces, and two characters are mostly a word.
    """
    text = _plain(markup)
    names = {f"{MARK}flag{flag.replace('-', '')}" for flag in _FLAG.findall(text)}
    for run in _RUN.findall(text):
        for name in {run, *run.split("/"), *run.split("=")}:
            parts = [part for part in separator.split(name) if part]
            joined = "".join(parts).lower()
            if len(parts) > 1 and len(joined) <= LONGEST_NAME:
                names.add(MARK + joined)
    for quoted in _CODE.findall(markup):
        names |= {MARK + pair for pair in word_pairs(_plain(quoted), separator)}
    for han in _HAN_RUN.findall(text):
        names |= {MARK + pair for pair in han_pairs(han)}
    return sorted(names)


def word_pairs(text: str, separator: re.Pattern[str]) -> list[str]:
    """Each two neighboring words as one. Pairs with Chinese would be split again."""
    words = [word.lower() for word in separator.split(text) if word]
    pairs = [first + second for first, second in pairwise(words)]
    return [pair for pair in pairs if pair.isascii()]


def han_pairs(text: str) -> list[str]:
    """Each two neighbors among Chinese characters by their code points, because the separator splits characters."""
    return [f"{ord(first):x}{ord(second):x}" for first, second in pairwise(text)]


def _plain(markup: str) -> str:
    return html.unescape(_TAG.sub(" ", markup))
