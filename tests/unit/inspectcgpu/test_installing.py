"""The lines of docs/inspect.md that install the plugin, in a home in which nothing is."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
PROGRAMS = ("kubectl-inspect-cgpu", "kubectl_complete-inspect-cgpu")


def lines(start: str) -> list[str]:
    """The lines of the block that begins with `start`, but for those that build or load libraries."""
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if block.strip().startswith(start)]
    commands = [line.strip() for line in block.splitlines()]
    return [line for line in commands if not re.match(r"make|python3|\S*/pip ", line)]


def run(commands: list[str], home: Path, folder: Path) -> None:
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    subprocess.run(["sh", "-euc", "\n".join(commands)], env=environ, cwd=folder, check=True)


def check(home: Path) -> None:
    for program in PROGRAMS:
        done = subprocess.run([home / ".local" / "bin" / program], capture_output=True, text=True, check=True)
        assert done.stdout == f"{program}\n"


def write_programs(folder: Path) -> None:
    folder.mkdir(parents=True)
    for program in PROGRAMS:
        (folder / program).write_text(f"#!/bin/sh\necho {program}\n")
        (folder / program).chmod(0o755)


def test_the_one_file_is_installed_into_a_fresh_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    write_programs(tmp_path / "build")
    for _ in ("first", "again"):
        run(lines("make inspect-onefile"), home, tmp_path)
        check(home)


def test_programs_of_pip_are_linked_into_a_fresh_home(tmp_path):
    home = tmp_path / "home"
    write_programs(home / ".local" / "share" / "gpuagent" / "bin")
    for _ in ("first", "again"):
        run(lines("python3 -m venv"), home, tmp_path)
        check(home)
