"""What moves what is pinned: .github/dependabot.yml names all of it, in a form that Dependabot reads."""

import re
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tests/e2e/tools"
ENTRIES = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
PROMISED = "kubernetes-*"


def tool_modules(go_mod: str) -> set[str]:
    """The required module of each tool, whose path begins with that of its module."""
    required = required_modules(go_mod)
    block = re.findall(r"^tool \((.+?)^\)", go_mod, re.MULTILINE | re.DOTALL)
    tools = re.findall(r"^tool ([^(\s]+)$", go_mod, re.MULTILINE) + " ".join(block).split()
    assert tools
    return {max((name for name in required if f"{tool}/".startswith(f"{name}/")), key=len) for tool in tools}


def required_modules(go_mod: str) -> set[str]:
    return set(re.findall(r"^\t(\S+) v\S+", go_mod, re.MULTILINE))


def test_the_module_of_each_tool_is_moved_and_no_other():
    """Only direct dependencies are moved by default, and Go writes the modules of tools as indirect."""
    moved = {}
    for entry in ENTRIES:
        if entry["package-ecosystem"] != "gomod":
            continue
        allowed = {rule["dependency-name"] for rule in entry["allow"] if rule["dependency-type"] == "all"}
        for directory in entry["directories"]:
            go_mod = (ROOT / directory.lstrip("/") / "go.mod").read_text()
            moved[Path(directory).name] = allowed & required_modules(go_mod)
    expected = {
        file.parent.name: tool_modules(file.read_text())
        for file in TOOLS.glob("*/go.mod")
        if not fnmatch(file.parent.name, PROMISED)
    }
    assert moved == expected
