"""What every command prints: errors, and documents in the requested format."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpuagent.system.printable import printable
from inspectcgpu.flags import PROG
from inspectcgpu.show.documents import json_text

FOR_PROGRAMS = ("json", "yaml")
"""Output formats that are documents."""


def complain(text: str) -> None:
    """Print an error, made printable, as it may contain text of servers."""
    print(printable(f"{PROG}: {text}"), file=sys.stderr)


def print_answer(output: str, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print an answer that is no report of nodes: `document` for programs, `lines` for people."""
    if output in FOR_PROGRAMS:
        print_document(output, document)
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def print_document(output: str, document: Mapping[str, Any]) -> None:
    """Print it as JSON or YAML."""
    if output == "json":
        print(json_text(document))
        return
    from gpuagent.system import yaml_text  # noqa: PLC0415 (only this output needs it)

    print(yaml_text.dump(document), end="")
