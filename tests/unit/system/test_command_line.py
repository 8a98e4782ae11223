"""What every program says of itself: its help as a whole, and what was meant by a mistake."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent import cli as agent
from gpuagent.settings.settings import GROUPS, Settings
from gpuagent.system.command_line import SHELLS
from gpuisolation import cli as installer
from gpuscheduler import cli as scheduler
from inspectcgpu import cli as inspect

SCREENS = Path(__file__).parent / "screens"
PROGRAMS = {
    "gpuagent": agent.run,
    "gpuscheduler": scheduler.run,
    "gpu-isolation-installer": installer.run,
    "kubectl-inspect-cgpu": inspect.run,
}


def said(capsys, program, *arguments):
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program](list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse formats help in its own way in each version")
@pytest.mark.parametrize("path", sorted(SCREENS.glob("*.txt")), ids=lambda path: path.stem)
def test_help_is_as_on_the_screen(path, capsys, monkeypatch):
    """In 80 columns. Each file's first line is the command."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GPUAGENT_URL", raising=False)
    command, _, screen = path.read_text().partition("\n")
    program, *arguments = command.removeprefix("$ ").split()
    code, out, _ = said(capsys, program, *arguments)
    assert (code, out) == (0, screen)
    assert max(map(len, screen.splitlines())) <= 80


def test_every_command_has_a_screen():
    shown = {
        path.read_text().partition("\n")[0].removeprefix("$ ").removesuffix(" --help") for path in SCREENS.iterdir()
    }
    programs = {
        "gpuagent": agent.make_parser(),
        "gpuscheduler": scheduler.make_parser(),
        "gpu-isolation-installer": installer.make_parser(),
    }
    commands = {f"{program} {name}" for program, parser in programs.items() for name in parser.commands}
    assert shown == commands | set(PROGRAMS)


@pytest.mark.parametrize("program", ["gpuagent", "gpuscheduler", "gpu-isolation-installer"])
def test_a_bare_call_shows_the_help(program, capsys):
    code, _, err = said(capsys, program)
    assert code == 2
    assert "COMMAND" in err
    assert "--version" in err


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_says_its_version(program, capsys):
    code, out, _ = said(capsys, program, "--version")
    assert code == 0
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize(
    ("program", "arguments", "meant"),
    [
        ("gpuagent", ["statsu"], "status"),
        ("gpuagent", ["run", "--memory-unti", "GiB"], "--memory-unit"),
        ("gpuagent", ["run", "--memory-unti=GiB"], "--memory-unit"),
        ("gpuscheduler", ["run", "--polcy", "fgd"], "--policy"),
        ("gpu-isolation-installer", ["instal"], "install"),
        ("kubectl-inspect-cgpu", ["--output", "jsn"], "json"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(program, arguments, meant, capsys):
    code, _, err = said(capsys, program, *arguments)
    assert code == 2
    assert f"; did you mean {meant}?\nSee: " in err


def test_a_mistake_in_a_flag_leads_to_the_help_of_its_command(capsys):
    _, _, err = said(capsys, "gpuagent", "run", "--node-nam", "n")
    assert err.endswith("did you mean --node-name?\nSee: gpuagent run --help\n")


def test_what_is_like_nothing_is_no_mistake_for_something(capsys):
    _, _, err = said(capsys, "gpuagent", "run", "--zzz")
    assert "did you mean" not in err


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_prints_its_completion(program, shell, capsys):
    code, script, _ = said(capsys, program, "--completion", shell)
    assert code == 0
    assert re.search(rf"\b{program}\b", script)


@pytest.mark.parametrize(
    ("program", "typed", "offered"),
    [
        ("gpuagent", "gpuagent stat", "status"),
        ("gpuagent", "gpuagent run --memory-u", "--memory-unit"),
        ("gpuscheduler", "gpuscheduler run --pol", "--policy"),
        ("gpu-isolation-installer", "gpu-isolation-installer pre", "preflight"),
        ("kubectl-inspect-cgpu", "kubectl-inspect-cgpu --det", "--details"),
    ],
)
def test_bash_completes(program, typed, offered, capsys):
    _, script, _ = said(capsys, program, "--completion", "bash")
    words = " ".join(map(shlex.quote, typed.split()))
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed.split()) - 1}; "
    ask += f"$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/') {program} {typed.split()[-1]}; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [offered], done.stderr


def test_every_setting_is_below_one_title_of_the_help():
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(Settings.__dataclass_fields__)
