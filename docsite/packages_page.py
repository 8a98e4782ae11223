"""docs/reference/packages.md: what each package answers, by its own docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

from docsite.markdown import MADE

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "gpuagent": "The agent",
    "scheduler/gpuscheduler": "The scheduler",
    "installer/gpuisolation": "The installer of cGPU",
    "kubectl/inspectcgpu": "kubectl inspect cgpu",
}
"""The folder of each program, and its name."""
_GENERATED = "_pb"


def page() -> str:
    """The page."""
    chapters = "\n".join([_chapter(folder, title) for folder, title in PROGRAMS.items()])
    return f"""# Packages

{MADE}

A package is a question, and a module is one answer. Each paragraph is the package's own docstring. `make lint` checks
who imports what, by the contracts in [pyproject.toml](../../pyproject.toml).
[architecture.md](../architecture.md) says how the packages work together.

{chapters}"""


def _chapter(folder: str, title: str) -> str:
    paragraphs = "".join(_packages(folder))
    return f"## {title}\n\n{paragraphs}"


def packages(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    """The packages below a folder, each with its parsed `__init__.py`."""
    for path in sorted((ROOT / folder).rglob("__init__.py")):
        if _GENERATED not in path.parts:
            yield path.parent, ast.parse(path.read_text(encoding="utf-8"))


def _packages(folder: str) -> Iterator[str]:
    for package, tree in packages(folder):
        docstring = ast.get_docstring(tree)
        if not docstring:
            raise ValueError(f"{package} has no docstring that says what it answers")
        yield f"### `{package.relative_to(ROOT)}/`\n\n{docstring}\n\n"
