"""What a line of the log looks like: fields as JSON has them, never as Python spells a value."""

import ast
import json
import logging
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import Mode
from gpuagent.system.log import JsonFormatter, TextFormatter

VALUES = {
    "one_user": (False, "false"),
    "gpus": ([0, 1], '"[0, 1]"'),
    "uuids": (frozenset({"GPU-b", "GPU-a"}), '"[\\"GPU-a\\", \\"GPU-b\\"]"'),
    "by_mode": ({Mode.SHARE: 2}, '"{\\"share\\": 2}"'),
    "none": (None, "null"),
    "mode": (Mode.CORE_MEM, "core_mem"),
    "path": (Path("/var/lib"), "/var/lib"),
    "error": (OSError(13, "Permission denied", "/x"), '"/x: Permission denied"'),
    "cause": (OSError(28, "No space left on device"), '"No space left on device"'),
    "entry": (KeyError("PodUID"), "\"KeyError: 'PodUID'\""),
    "text": ("", '""'),
    "count": (3, "3"),
}


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("gpuagent.x", logging.WARNING, __file__, 1, "Refused pod", (), None)
    made.__dict__ |= fields
    return made


@pytest.mark.parametrize("name", VALUES)
def test_a_field_is_never_spelled_as_python_does(name: str) -> None:
    value, text = VALUES[name]
    assert TextFormatter().format(record(**{name: value})).endswith(f"Refused pod {name}={text}")
    line = json.loads(JsonFormatter().format(record(**{name: value})))
    as_json = line[name] if isinstance(line[name], str) else json.dumps(line[name])
    assert as_json in {text, json.loads(text) if text.startswith('"') else text}


def spelled(handler: ast.ExceptHandler) -> list[int]:
    """Lines where an OSError goes into a text as Python spells it: ``[Errno 2] …: PosixPath('/x')``."""
    if handler.type is None or "OSError" not in ast.unparse(handler.type):
        return []
    texts = (node.value for node in ast.walk(handler) if isinstance(node, ast.FormattedValue | ast.Return))
    return [text.lineno for text in texts if text and ast.unparse(text) in {handler.name, f"str({handler.name})"}]


def test_no_sentence_has_an_error_of_the_system_as_python_spells_it() -> None:
    for path in (Path(__file__).parents[3] / "gpuagent").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
        assert not [line for handler in handlers for line in spelled(handler)], f"{path}: say it with error_words"


def test_no_call_of_the_log_puts_a_repr_into_a_field() -> None:
    """Formatters spell values; a call that spells one first spells it as Python does."""
    for path in (Path(__file__).parents[3] / "gpuagent").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not ("extra=" in line and ("repr(" in line or "!r}" in line)), f"{path}: {line.strip()}"


def test_a_line_of_the_log_is_as_kubernetes_logging_guide_has_it() -> None:
    """A capital, no period, and what was done, in the past tense, or the name of a problem."""
    root = Path(__file__).parents[3]
    folders = (root / "gpuagent", root / "scheduler", root / "installer/gpuisolation")
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")):
                continue
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            for text in texts:
                assert text == "%s" or (text[0].isupper() and not text.endswith(".")), f"{path}:{node.lineno}"
                assert text.split()[0] not in {"A", "An", "The", "Cannot"}, f"{path}:{node.lineno}: {text}"
