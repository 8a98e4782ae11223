"""Where prose stands: Markdown, strings of Python code, YAML. Blocks of text, each with the line it begins on."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

PLACEHOLDER = "`x`"
"""Stands for a value that is only known when the program runs. It is read as code: one word, no rules."""

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,},?(?: [a-z]{2,}| `x`|[.:;]|$)")
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_COMMENT = re.compile(r"^\s*(?:#+|//)\s?(.*)$|.*?\s#+\s(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, list item, heading, table cell or string."""

    line: int
    text: str


def blocks_of(path: Path, *, with_remarks: bool = False) -> Iterator[Block]:
    """Everything in a file that the rules apply to; docstrings and comments of Python on request."""
    text = path.read_text(encoding="utf-8")
    if with_remarks and path.suffix == ".py":
        yield from remarks(text)
    match path.suffix:
        case ".md":
            yield from markdown(text)
        case ".py":
            yield from strings(text)
        case ".json":
            yield from json_texts(text)
        case ".svg":
            yield from svg_texts(text)
        case _:
            yield from yaml_texts(text)


def markdown(text: str) -> Iterator[Block]:
    """Everything but code. The cells of a table's row share its line."""
    line = 1
    for token in _MARKDOWN.parse(text):
        if token.map is not None:
            line = token.map[0] + 1
        if token.type == "inline":
            yield Block(line, token.content)


def strings(source: str) -> Iterator[Block]:
    """Strings that read as prose: help, messages, log lines, what commands print. Docstrings are not among them."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else PLACEHOLDER
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | bare:
            text = node.value
        else:
            continue
        if "(?:" not in text:  # a regular expression
            yield from _paragraphs(node.lineno, text)


def remarks(source: str) -> Iterator[Block]:
    """Docstrings and comments; comments on consecutive lines are one block."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _paragraphs(node.lineno, node.value.value)
    comment: list[str] = []
    began = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            began = began if comment else token.start[0]
            comment.append(token.string.lstrip("# "))
        elif token.type not in {tokenize.NL, tokenize.NEWLINE}:
            yield from _paragraphs(began, "\n".join(comment))
            comment = []


def yaml_texts(source: str) -> Iterator[Block]:
    """Comments, and values that read as prose. A Helm template is no YAML: its comments only."""
    comment: list[str] = []
    began = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = _COMMENT.match(line)
        words = (found[1] or found[2] or "") if found else ""
        if words and comment and line.lstrip().startswith("#"):
            comment.append(words)
            continue
        yield from _paragraphs(began, "\n".join(comment))
        comment, began = [words] if words else [], number
    try:
        documents = list(yaml.compose_all(source))
    except yaml.YAMLError:
        return
    for document in documents:
        yield from _values(document)


def _values(node: yaml.Node | None) -> Iterator[Block]:
    if isinstance(node, yaml.ScalarNode):
        yield from _paragraphs(node.start_mark.line + 1, _TEMPLATE.sub(PLACEHOLDER, node.value))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in {"expr", "args", "command"}:
                yield from _values(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _values(value)


def json_texts(source: str) -> Iterator[Block]:
    """Values of the keys that people read."""
    for number, line in enumerate(source.splitlines(), 1):
        if found := re.match(r'\s*"(?:title|description)": (".*?"),?$', line):
            yield Block(number, json.loads(found[1]))


def svg_texts(source: str) -> Iterator[Block]:
    """Title, description and labels."""
    for found in re.finditer(r">([^<>{}]*\w[^<>{}]*)<", source):
        yield Block(source.count("\n", 0, found.start()) + 1, found[1])


def _paragraphs(line: int, text: str) -> Iterator[Block]:
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*•] |\s{2,})", text):
        if _PROSE.search(paragraph):
            yield Block(line, paragraph)
