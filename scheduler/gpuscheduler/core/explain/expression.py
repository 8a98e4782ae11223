"""Reads the part of CEL in which claims and classes select devices. Anything else is `Unparsable`, never an error.

Operators, `in`, texts, numbers, lists, members, indexes and calls. Left out: the conditional operator, maps, macros and
optional values, which hardly any selector of devices has.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

MOST_TEXT = 10 * 1024
"""Characters of an expression. The API server takes no longer one."""
MOST_DEPTH = 40
"""Levels of parentheses, calls and lists inside each other."""
MOST_MEMBERS = 16
"""Members and methods after each other: `a.b.c`."""
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<float>[0-9]+\.[0-9]+)"
    r"|(?P<int>[0-9]{1,19}u?)(?![0-9A-Za-z_.])"
    r"|(?P<text>\"[^\"\\\n]*\"|'[^'\\\n]*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!()\[\],.+-])"
    r")"
)
_COMPARED = ("==", "!=", "<=", ">=", "<", ">", "in")
_TRUTHS = {"true": True, "false": False}


class Unparsable(Exception):  # noqa: N818 (what people wrote is not an error of this code)
    """An expression outside of what is read here."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number or a truth."""

    value: object


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, such as `device`."""

    name: str


@dataclass(frozen=True, slots=True)
class Member:
    """A field or an element: `of.key`, `of["key"]`."""

    of: "Tree"
    key: "Tree"


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or a method of `of`."""

    name: str
    of: "Tree | None"
    arguments: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    of: "Tree"


@dataclass(frozen=True, slots=True)
class Compared:
    """Two values with an operator between them."""

    operator: str
    left: "Tree"
    right: "Tree"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Parts with `||` between them."""

    parts: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Parts with `&&` between them, and how each is written."""

    parts: "tuple[Tree, ...]"
    texts: tuple[str, ...]


Tree: TypeAlias = Literal | Name | Member | Call | Sequence | Not | Compared | AnyOf | AllOf


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


_END = _Token("end", "", 0, 0)


def parsed(expression: str) -> Tree:
    """The tree of an expression. Raises Unparsable."""
    if len(expression) > MOST_TEXT:
        raise Unparsable("it is too long")
    return _Parser(expression).whole()


class _Parser:
    """Descends from the weakest operator to the strongest."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._position = 0
        self._depth = 0

    def whole(self) -> Tree:
        """The tree of all tokens."""
        tree = self._any()
        if self._next is not _END:
            raise Unparsable(f"unexpected {self._next.text}")
        return tree

    def _any(self) -> Tree:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise Unparsable("it is too deep")
        parts = [self._all()]
        while self._takes("||"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all(self) -> Tree:
        parts: list[Tree] = []
        texts: list[str] = []
        while True:
            start = self._next.start
            parts.append(self._comparison())
            end = self._tokens[self._position - 1].end
            texts.append(self._expression[start:end])
            if not self._takes("&&"):
                break
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts), tuple(texts))

    def _comparison(self) -> Tree:
        left = self._opposite()
        operator = self._next.text
        is_operator = self._next.kind in {"sign", "name"} and operator in _COMPARED
        if not is_operator:
            return left
        self._position += 1
        return Compared(operator, left, self._opposite())

    def _opposite(self) -> Tree:
        opposites = 0
        while self._takes("!"):
            opposites += 1
        tree = self._with_members(self._primary())
        return Not(tree) if opposites % 2 else tree

    def _primary(self) -> Tree:  # noqa: PLR0911 (a line for each kind)
        token = self._next
        self._position += 1
        match token.kind, token.text:
            case "text", written:
                return Literal(written[1:-1])
            case "int", written:
                return Literal(int(written.rstrip("u")))
            case "float", written:
                return Literal(float(written))
            case "name", "true" | "false":
                return Literal(_TRUTHS[token.text])
            case "name", "in":
                raise Unparsable("unexpected in")
            case "name", name:
                return self._named(name)
            case "sign", "-":
                return Literal(-self._number())
            case "sign", "(":
                inner = self._any()
                self._expect(")")
                return inner
            case "sign", "[":
                return Sequence(self._listed("]"))
        raise Unparsable(f"unexpected {token.text}")

    def _number(self) -> float:
        token = self._next
        if token.kind not in {"int", "float"}:
            raise Unparsable("a minus before what is not a number")
        self._position += 1
        read: Callable[[str], float] = float if token.kind == "float" else int
        return read(token.text.rstrip("u"))

    def _named(self, name: str) -> Tree:
        if self._takes("("):
            return Call(name, None, self._listed(")"))
        return Name(name)

    def _with_members(self, tree: Tree) -> Tree:
        for _ in range(MOST_MEMBERS):
            if self._takes("["):
                key = self._any()
                self._expect("]")
                tree = Member(tree, key)
            elif self._takes("."):
                tree = self._member(tree)
            else:
                return tree
        raise Unparsable("it has too many members")

    def _member(self, of: Tree) -> Tree:
        token = self._next
        if token.kind != "name":
            raise Unparsable(f"unexpected {token.text}")
        self._position += 1
        if self._takes("("):
            return Call(token.text, of, self._listed(")"))
        return Member(of, Literal(token.text))

    def _listed(self, end: str) -> tuple[Tree, ...]:
        """Items with commas between them, and the sign that ends them."""
        items: list[Tree] = []
        if self._takes(end):
            return ()
        while True:
            items.append(self._any())
            if self._takes(end):
                return tuple(items)
            self._expect(",")

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def _takes(self, sign: str) -> bool:
        """Whether this sign is next, which is passed then."""
        is_next = self._next.kind == "sign" and self._next.text == sign
        self._position += is_next
        return is_next

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise Unparsable(f"no {sign}")


def _tokens(expression: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None or match.lastgroup is None:
            raise Unparsable(f"unexpected {expression[position : position + 1]}")
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind), match.end(kind)))
        position = match.end()
    return tokens
