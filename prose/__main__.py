"""Lint prose: `python -m prose [FILE ...]`; without files, every document and every file with user-visible strings."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from prose.sentences import findings, sentences
from prose.sources import blocks_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("*.md", "docs/**/*.md", "docs/img/*.svg", "examples/**/*.yaml")
STRINGS = (
    "gpuagent/**/*.py",
    "installer/**/*.py",
    "kubectl/**/*.py",
    "scheduler/**/*.py",
    "demo/**/*.py",
    "bench/**/*.py",
    "image/**/*.py",
    "manifests/*.py",
    "docsite/*.py",
    "Makefile",
    "Dockerfile",
    "manifests/helm/*/values.yaml",
    "manifests/helm/*/values.schema.json",
    "manifests/helm/*/monitoring/*",
    "manifests/helm/*/templates/*.yaml",
)


def files() -> Iterator[Path]:
    for pattern in (*DOCUMENTS, *STRINGS):
        yield from sorted(path for path in ROOT.glob(pattern) if "_pb" not in path.parts and not _is_chinese(path))


def _is_chinese(path: Path) -> bool:
    return path.name.endswith(".zh-CN.md") or "zh" in path.parts


def problems(path: Path, *, with_remarks: bool = False) -> Iterator[str]:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for block in blocks_of(path, with_remarks=with_remarks):
        for sentence in sentences(block.text):
            for finding in findings(sentence):
                yield f"{shown}:{block.line}: {finding}\n    {' '.join(sentence.split())}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="prose", description="Hold documents and user-visible strings against prose/style.toml."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="files to read (default: all of the project)"
    )
    parser.add_argument("--remarks", action="store_true", help="also read docstrings and comments of Python files")
    options = parser.parse_args(arguments)
    paths = [path.resolve() for path in options.files] or files()
    found = [line for path in paths for line in problems(path, with_remarks=options.remarks)]
    for line in found:
        print(line)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
