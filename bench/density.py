"""``python -m bench.density``: how much there is to read in the code, and how much of it a reader meets at once.

Counted in the syntax tree, so that a line break or a shorter name changes nothing. Tests and generated code are left
out. The limit on one line is kept by a linter (`make lint`); this table only shows where the code stands.
"""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {
    "agent": ("gpuagent",),
    "heart": ("gpuagent/domain/deviceplugin", "gpuagent/allocator"),
    "scheduler": ("scheduler/gpuscheduler",),
    "product": ("gpuagent", "scheduler/gpuscheduler", "installer", "kubectl"),
}
"""Name of a row to the folders that it counts."""

GENERATED = "_pb"
"""Folder of generated code."""

VAGUE_NAMES = {"one", "found"}
LONG_CLASS = 250
MANY_FIELDS = 20

Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Density:
    """What was counted in some files.

    Attributes:
        nodes: of the syntax tree, without docstrings and without the marks for load and store.
        lines: lines with code.
        text_lines: all lines that are not empty.
        comments: lines with a comment, except those for tools such as ``# noqa``.
        tuple_assignments: statements such as ``a, b = c, d``.
        nested: comprehensions inside another one.
        names: assigned names.
        vague: those that are called `one` or `found`.
        long_classes: names of classes over `LONG_CLASS` lines.
        wide_classes: names of classes over `MANY_FIELDS` fields.
    """

    nodes: int = 0
    lines: int = 0
    text_lines: int = 0
    comments: int = 0
    tuple_assignments: int = 0
    nested: int = 0
    names: int = 0
    vague: int = 0
    long_classes: list[str] = field(default_factory=list)
    wide_classes: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        """The figures of this row of the table."""
        return [
            f"{self.nodes}",
            f"{self.nodes / self.lines:.1f}",
            f"{1000 * self.tuple_assignments / self.lines:.1f}",
            f"{1000 * self.nested / self.lines:.1f}",
            f"{100 * self.vague / self.names:.1f} %",
            f"{100 * self.comments / self.text_lines:.1f} %",
            f"{len(self.long_classes)}",
            f"{len(self.wide_classes)}",
        ]


HEADER = [
    "part",
    "nodes",
    "nodes per line",
    "a, b = c, d per 1,000",
    "nested comprehensions per 1,000",
    "one, found",
    "comments",
    "classes over 250 lines",
    "over 20 fields",
]


def measure(files: Iterable[Path]) -> Density:
    """Count what is in these files of Python code."""
    total = Density()
    for file in files:
        _add(file.read_text(), total)
    return total


def _add(text: str, total: Density) -> None:
    tree = ast.parse(text)
    _drop_docstrings(tree)
    total.nodes += sum(1 for node in ast.walk(tree) if not isinstance(node, ast.expr_context))
    total.lines += len(_code_lines(tree))
    total.text_lines += sum(1 for line in text.splitlines() if line.strip())
    total.comments += sum(1 for _ in _comments(text))
    for node in ast.walk(tree):
        _add_node(node, total)


def _add_node(node: ast.AST, total: Density) -> None:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        total.tuple_assignments += any(isinstance(target, ast.Tuple) for target in node.targets)
    if isinstance(node, Comprehension):
        inner = [child for child in ast.walk(node) if isinstance(child, Comprehension)]
        total.nested += len(inner) > 1
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        total.names += 1
        total.vague += node.id in VAGUE_NAMES
    if isinstance(node, ast.ClassDef):
        _add_class(node, total)


def _add_class(node: ast.ClassDef, total: Density) -> None:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > LONG_CLASS:
        total.long_classes.append(node.name)
    if len(_fields(node)) > MANY_FIELDS:
        total.wide_classes.append(node.name)


def _fields(node: ast.ClassDef) -> set[str]:
    """Fields of a class: annotated in its body, or assigned through `self`."""
    names = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and _is_self(child.value):
            names.add(child.attr)
    return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _drop_docstrings(tree: ast.AST) -> None:
    """Take strings that stand alone out of the tree: they document, and compute nothing."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [child for child in body if not _is_text(child)]


def _is_text(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _code_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold a part of the tree."""
    numbers = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.alias, ast.keyword)):
            numbers.add(node.lineno)
    return numbers


def _comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ")
            if not comment.startswith(("noqa", "type: ignore", "pragma")):
                yield comment


def files_of(folders: Iterable[str]) -> list[Path]:
    """Files of Python code in these folders, without generated ones."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in files if GENERATED not in file.parts]


def main() -> None:
    rows = [HEADER]
    details = []
    for part, folders in PARTS.items():
        density = measure(files_of(folders))
        rows.append([part, *density.row()])
        details.append(f"{part}: long classes {density.long_classes}, wide classes {density.wide_classes}")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(*details, sep="\n")


if __name__ == "__main__":
    main()
