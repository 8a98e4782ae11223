"""Killed at every effect: the next run finishes or takes back, and the node is whole."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuisolation import cli
from tests.unit.installer.fakehost import HOOK, Counter, FakeHost, Killed, package

ROOT = Path(__file__).parents[3]


class Story:
    """One command on a prepared node, and what must hold when it is over."""

    def __init__(self, folder: Path, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.prepared = FakeHost(folder / "prepared")
        self.number = 0

    def fresh(self) -> FakeHost:
        """The prepared node again."""
        self.number += 1
        root = self.folder / f"run-{self.number}"
        shutil.copytree(self.prepared.root, root, symlinks=True)
        host = FakeHost.__new__(FakeHost)
        host.root = root
        return host

    def package(self, version: str, *, broken: bool = False) -> str:
        folder = self.folder / f"package-{version}-{broken}"
        return str(folder if folder.exists() else package(folder, version, broken=broken))

    def run(self, host: FakeHost, *arguments: str, counter: Counter | None = None) -> tuple[int, str]:
        command, *rest = arguments
        try:
            code = cli.run([command, "--root", str(host.root), *rest], host.make(counter))
        finally:
            said = self.capsys.readouterr()
        return code, said.err

    def prepare(self, *arguments: str) -> None:
        code, said = self.run(self.prepared, *arguments)
        assert code == 0, said


@pytest.fixture
def story(tmp_path, capsys):
    return Story(tmp_path, capsys)


def operation(story: Story, name: str) -> tuple[list[str], int]:
    """The command, its exit code when nobody kills it; the node prepared for it."""
    if name.endswith("new toolkit"):
        story.prepared.new_toolkit()
    if not name.startswith("install"):
        story.prepare("install", "--package", story.package("1.5.10"), "--policy", "3")
    return {
        "install": (["install", "--package", story.package("1.5.10"), "--policy", "3"], 0),
        "upgrade": (["upgrade", "--package", story.package("1.5.12")], 0),
        "uninstall": (["uninstall"], 0),
        "install, new toolkit": (["install", "--package", story.package("1.5.10"), "--policy", "3"], 0),
        "uninstall, new toolkit": (["uninstall"], 0),
        "failing upgrade": (["upgrade", "--package", story.package("1.5.14", broken=True)], 1),
    }[name]


OPERATIONS = ["install", "upgrade", "uninstall", "failing upgrade", "install, new toolkit", "uninstall, new toolkit"]


HOOKS = {
    "install": {"the original", "wrapper of cgpu 1.5.10\n"},
    "upgrade": {"wrapper of cgpu 1.5.10\n", "wrapper of cgpu 1.5.12\n"},
    "uninstall": {"the original", "wrapper of cgpu 1.5.10\n"},
    "failing upgrade": {"wrapper of cgpu 1.5.10\n"},
    "install, new toolkit": {"the toolkit's hook", "wrapper of cgpu 1.5.10\n"},
    "uninstall, new toolkit": {"the toolkit's hook", "wrapper of cgpu 1.5.10\n"},
}


def ends(story: Story, command: list[str], code: int) -> tuple[dict[str, str], dict[str, str], list[str], int]:
    """The node before, after, our own files after, and how many effects it takes."""
    host, counter = story.fresh(), Counter()
    before = host.tree()
    found, said = story.run(host, *command, counter=counter)
    assert found == code, said
    return before, host.tree(), host.state(), counter.count


PARTS = 4
"""The effects are dealt out to so many tests, which run side by side."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_any_effect_the_next_run_makes_the_node_whole(story, name, part):
    command, code = operation(story, name)
    _, wanted, state, effects = ends(story, command, code)
    assert effects > 15
    for number in range(1 + part, effects + 1, PARTS):
        host = story.fresh()
        with pytest.raises(Killed):
            story.run(host, *command, counter=Counter(number))
        # Nothing is half there, and no container could start past the layer unnoticed while it is exchanged.
        hook = (host.root / HOOK).read_text() if not (host.root / HOOK).is_symlink() else "the original"
        assert hook in HOOKS[name], number
        found, said = story.run(host, *command)
        assert (found, host.tree(), host.state()) == (code, wanted, state), (number, said)
        shutil.rmtree(host.root)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_and_rebooted_the_next_run_makes_the_node_whole(story, name, part):
    command, code = operation(story, name)
    _, wanted, state, effects = ends(story, command, code)
    for number in range(1 + part, effects + 1, PARTS):
        host = story.fresh()
        with pytest.raises(Killed):
            story.run(host, *command, counter=Counter(number))
        host.reboot()
        story.run(host, *command)
        if host.version() == "" and not name.startswith("uninstall"):  # it was over before the reboot, or taken back
            assert story.run(host, "install")[0] == 0, number
        assert (host.tree(), host.state()) == (wanted, state), number
        shutil.rmtree(host.root)


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_again_while_it_goes_on_the_third_run_makes_the_node_whole(story, name):
    command, code = operation(story, name)
    _, wanted, state, effects = ends(story, command, code)
    for first in range(effects // 3, effects, 5):
        for second in (1, 4, 9):
            host = story.fresh()
            for last in (first, second):
                with contextlib.suppress(Killed):  # near the end, fewer effects are left
                    story.run(host, *command, counter=Counter(last))
            found, said = story.run(host, *command)
            assert (found, host.tree(), host.state()) == (code, wanted, state), (first, second, said)
            shutil.rmtree(host.root)


# SIGKILL for a process of its own: no handler, no `finally`, no destructor runs.
REALLY = """
import sys
from pathlib import Path
from gpuisolation import cli
from tests.unit.installer.fakehost import Counter, FakeHost
number, after, root, command, *rest = sys.argv[1:]
host = FakeHost.__new__(FakeHost)
host.root = Path(root)
counter = Counter(int(number), after=after == "after", really=True)
sys.exit(cli.run([command, "--root", root, *rest], host.make(counter)))
"""


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_by_the_kernel_the_next_run_makes_the_node_whole(story, name):
    command, code = operation(story, name)
    _, wanted, state, effects = ends(story, command, code)
    chance = random.Random(name)  # the same points every time
    for number in chance.sample(range(1, effects + 1), 4):
        host = story.fresh()
        moment = chance.choice(["before", "after"])
        argv = [sys.executable, "-c", REALLY, str(number), moment, str(host.root), *command]
        path = os.pathsep.join([str(ROOT), str(ROOT / "installer")])
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        found, said = story.run(host, *command)
        assert (found, host.tree(), host.state()) == (code, wanted, state), (number, moment, said)


def test_what_is_left_is_not_finished_while_a_container_uses_a_gpu(story):
    command, _ = operation(story, "upgrade")
    host = story.fresh()
    with pytest.raises(Killed):
        story.run(host, *command, counter=Counter(20))
    host.container(900)
    before = host.tree()
    code, said = story.run(host, *command)
    assert code == 3
    assert "pid 900" in said
    assert "to finish the upgrade of cGPU 1.5.12" in said
    assert host.tree() == before
    host.end(900)
    assert story.run(host, *command)[0] == 0
    assert host.works("1.5.12")


def test_when_only_the_record_was_missing_it_is_written_under_running_containers(story):
    command, code = operation(story, "upgrade")
    _, _, state, effects = ends(story, command, code)
    host = story.fresh()
    with pytest.raises(Killed):
        story.run(host, *command, counter=Counter(effects - 2))
    assert "journal.json" in host.state()
    host.container(900)
    before = host.tree()
    assert story.run(host, *command)[0] == 0
    assert (host.tree(), host.state()) == (before, state)
    assert host.works("1.5.12")


def test_a_reading_command_says_what_is_left_and_leaves_it(story):
    command, _ = operation(story, "upgrade")
    host = story.fresh()
    with pytest.raises(Killed):
        story.run(host, *command, counter=Counter(20))
    before = host.tree(), host.state()
    cli.run(["status", "--root", str(host.root)], host.make())
    said = story.capsys.readouterr()
    assert "! unfinished: upgrade of cGPU 1.5.12, goes on" in said.out
    assert (host.tree(), host.state()) == before
