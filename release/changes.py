"""What is new in a version, from CHANGELOG.md, in the form in which Artifact Hub shows it."""

import re

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""Artifact Hub's. Source: docs/helm_annotations.md of github.com/artifacthub/hub."""
MOST_CHANGES = 50
"""Registries keep the annotations of a chart in its manifest, which is small."""
MOST_TEXT = 300
"""Characters of a change. The rest is in the changelog."""


def changes(changelog: str, version: str) -> list[dict[str, str]]:
    """The changes of a version: its headings that are among `KINDS`, and the first sentence of each entry."""
    _, found, section = changelog.partition(f"\n## [{version}]")
    if not found:
        return []
    section = section.split("\n## ")[0]
    entries = []
    for part in section.split("\n### ")[1:]:
        title, _, text = part.partition("\n")
        kind = title.strip().lower()
        if kind in KINDS:
            entries += [{"kind": kind, "description": _first_sentence(entry)} for entry in _entries(text)]
    if len(entries) > MOST_CHANGES:
        more = f"{len(entries) - MOST_CHANGES} more changes are in the changelog"
        return [*entries[:MOST_CHANGES], {"kind": "changed", "description": more}]
    return entries


def _entries(text: str) -> list[str]:
    """The entries of the lists, each on one line. The headings between them are left out."""
    without_headings = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    return [" ".join(entry.split()) for entry in re.split(r"^- ", without_headings, flags=re.MULTILINE)[1:]]


def _first_sentence(entry: str) -> str:
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", entry, maxsplit=1)[0]
    return sentence if len(sentence) <= MOST_TEXT else f"{sentence[: MOST_TEXT - 1].rsplit(' ', 1)[0]}…"
