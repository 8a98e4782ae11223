"""`python -m tests.contract.contract_page FILE`: writes the specification that the tests of this folder are, as a page."""

import ast
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
_CHECK = re.compile(r"test_(\d{2,3})_(\w+)")
_WRITTEN = {
    "gpu": "GPU",
    "gpus": "GPUs",
    "api": "API",
    "kubelets": "kubelet's",
    "drivers": "driver's",
    "getinfo": "GetInfo",
    "Dra": "DRA:",
}
_INTRO = """# The contract with kubelet

Kubelet, schedulers and users rely on these numbered checks. Each check is a test of the agent against stand-ins of
kubelet, in several versions, and of the API server. `make generate` makes this page from the tests.

Checks 01 to 39 are about the device-plugin API. The checks from 40 on are about Dynamic Resource Allocation (DRA). They
follow Kubernetes' own tests for DRA drivers. [Their list](kubernetes-dra-tests.md) says which check shows which of them.
"""


def page() -> str:
    """The page: one chapter for each file, one line for each check."""
    chapters = [_INTRO]
    for path in sorted(FOLDER.glob("test_*.py"), key=_first_check):
        if lines := [line for _, line in _checks(path)]:
            title = _sentence(path.stem.removeprefix("test_"))
            source = f"[tests/contract/{path.name}](../../tests/contract/{path.name})"
            chapters.append(
                f"## {title}\n\nIn {source}.\n\n| check | what holds |\n|---|---|\n" + "\n".join(lines) + "\n"
            )
    return "\n".join(chapters)


def _checks(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = [(int(match[1]), match[2]) for node in tests if (match := _CHECK.fullmatch(node.name))]
    return sorted((number, f"| {number:02} | {_sentence(words)} |") for number, words in found)


def _sentence(words: str) -> str:
    text = words.replace("_", " ").capitalize()
    for word, written in _WRITTEN.items():
        text = re.sub(rf"\b{word}\b", written, text)
    return text


def _first_check(path: Path) -> int:
    return min((number for number, _ in _checks(path)), default=0)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
