"""Killed at every effect: the next run finishes or takes back, and the node is whole.

The operation runs once. The node that a kill leaves is a copy of what lies there at that moment; a test with
real kills shows that it is the same.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container
from pathlib import Path

import pytest

from gpuisolation import cli
from tests.unit.installer.fakehost import HOOK, Counter, FakeHost, package

ROOT = Path(__file__).parents[3]


class PreparedNode:
    """One command on a prepared node, and what must hold when it is over."""

    def __init__(self, folder: Path, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.prepared = FakeHost(folder / "prepared")
        self.number = 0

    def copy(self, host: FakeHost) -> FakeHost:
        self.number += 1
        root = self.folder / f"run-{self.number}"
        shutil.copytree(host.root, root, symlinks=True)
        copy = FakeHost.__new__(FakeHost)
        copy.root = root
        return copy

    def fresh(self) -> FakeHost:
        """The prepared node again."""
        return self.copy(self.prepared)

    def package(self, version: str, *, broken: bool = False) -> str:
        folder = self.folder / f"package-{version}-{broken}"
        return str(folder if folder.exists() else package(folder, version, broken=broken))

    def run(self, host: FakeHost, *arguments: str, counter: Counter | None = None) -> tuple[int, str]:
        command, *rest = arguments
        try:
            code = cli.run([command, "--root", str(host.root), *rest], host.make(counter))
        finally:
            output = self.capsys.readouterr()
        return code, output.err

    def prepare(self, *arguments: str) -> None:
        code, output = self.run(self.prepared, *arguments)
        assert code == 0, output


class CopiesAtEffects(Counter):
    """Kills nothing: copies the node that a kill would leave."""

    def __init__(self, node: PreparedNode, host: FakeHost, numbers: Container[int], *, after: bool = False) -> None:
        super().__init__(numbers, after=after)
        self.node, self.host = node, host
        self.left: dict[int, FakeHost] = {}

    def kill(self) -> None:
        self.left[self.count] = self.node.copy(self.host)


@pytest.fixture(scope="session")
def nodes(tmp_path_factory):
    """A folder for hundreds of nodes, deleted together at the end: ext4 without a journal is slow to make files soon
    after it deleted others."""
    folder = tmp_path_factory.mktemp("nodes")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def node(nodes, capsys):
    return PreparedNode(Path(tempfile.mkdtemp(dir=nodes)), capsys)


def operation(node: PreparedNode, name: str) -> tuple[list[str], int]:
    """The command, its exit code when nobody kills it; the node prepared for it."""
    if name.endswith("new toolkit"):
        node.prepared.new_toolkit()
    if not name.startswith("install"):
        node.prepare("install", "--package", node.package("1.5.10"), "--policy", "3")
    return {
        "install": (["install", "--package", node.package("1.5.10"), "--policy", "3"], 0),
        "upgrade": (["upgrade", "--package", node.package("1.5.12")], 0),
        "uninstall": (["uninstall"], 0),
        "install, new toolkit": (["install", "--package", node.package("1.5.10"), "--policy", "3"], 0),
        "uninstall, new toolkit": (["uninstall"], 0),
        "failing upgrade": (["upgrade", "--package", node.package("1.5.14", broken=True)], 1),
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


def ends(
    node: PreparedNode, command: list[str], code: int, *, kills: Container[int] = (), after: bool = False
) -> tuple[dict[str, str], list[str], int, dict[int, FakeHost]]:
    """The node after, our own files after, how many effects it takes, and what `kills` at some of them leave."""
    host = node.fresh()
    counter = CopiesAtEffects(node, host, kills, after=after)
    found, output = node.run(host, *command, counter=counter)
    assert found == code, output
    return host.tree(), host.state(), counter.count, counter.left


EVERY = range(1, 1000)


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_any_effect_the_next_run_makes_the_node_whole(node, name):
    command, code = operation(node, name)
    wanted, state, effects, left = ends(node, command, code, kills=EVERY)
    assert effects > 15
    assert [*left] == [*range(1, effects + 1)]
    for number, host in left.items():
        # Nothing is half there, and no container could start past the layer unnoticed while it is exchanged.
        hook = (host.root / HOOK).read_text() if not (host.root / HOOK).is_symlink() else "the original"
        assert hook in HOOKS[name], number
        found, output = node.run(host, *command)
        assert (found, host.tree(), host.state()) == (code, wanted, state), (number, output)


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_and_rebooted_the_next_run_makes_the_node_whole(node, name):
    command, code = operation(node, name)
    wanted, state, effects, left = ends(node, command, code, kills=EVERY)
    assert [*left] == [*range(1, effects + 1)]
    for number, host in left.items():
        host.reboot()
        node.run(host, *command)
        if host.version() == "" and not name.startswith("uninstall"):  # it was over before the reboot, or taken back
            assert node.run(host, "install")[0] == 0, number
        assert (host.tree(), host.state()) == (wanted, state), number


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_again_while_it_goes_on_the_third_run_makes_the_node_whole(node, name):
    command, code = operation(node, name)
    wanted, state, effects, _ = ends(node, command, code)
    firsts = range(effects // 3, effects, 5)
    *_, left = ends(node, command, code, kills=firsts)
    assert [*left] == [*firsts]
    for first, goes_on in left.items():
        again = CopiesAtEffects(node, goes_on, (1, 4, 9))
        node.run(goes_on, *command, counter=again)
        assert 1 in again.left
        for host in (*again.left.values(), goes_on):  # near the end, fewer effects are left
            found, output = node.run(host, *command)
            assert (found, host.tree(), host.state()) == (code, wanted, state), (first, output)


# SIGKILL for processes of their own: no handler, no `finally`, no destructor runs.
REALLY = """
import os, signal, sys
from pathlib import Path
from gpuisolation import cli
from tests.unit.installer.fakehost import Counter, FakeHost
kills, *command = sys.argv[1:]
for kill in kills.split():
    number, moment, root = kill.split(":")
    child = os.fork()
    if child == 0:
        host = FakeHost.__new__(FakeHost)
        host.root = Path(root)
        counter = Counter({int(number)}, after=moment == "after")
        os._exit(cli.run([command[0], "--root", root, *command[1:]], host.make(counter)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, kill
"""


def everything(host: FakeHost) -> dict[str, str]:
    """Every file and link, with its content, but names by chance and hashes of files that have them."""

    def alike(text: str) -> str:
        return re.sub(r"originals/\.?[0-9a-f]{8}-|[0-9a-f]{64}", "", text)

    paths = [path for path in host.root.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {
        alike(str(path.relative_to(host.root))): str(path.readlink())
        if path.is_symlink()
        else f"{path.stat().st_mode:o} {alike(path.read_text())}"
        for path in paths
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_by_the_kernel_the_next_run_makes_the_node_whole(node, name):
    command, code = operation(node, name)
    wanted, state, effects, _ = ends(node, command, code)
    chance = random.Random(name)  # the same points every time
    numbers = chance.sample(range(1, effects + 1), 4)
    killed = [(number, chance.choice(["before", "after"]), node.fresh()) for number in numbers]
    kills = " ".join(f"{number}:{moment}:{host.root}" for number, moment, host in killed)
    path = os.pathsep.join([str(ROOT), str(ROOT / "installer")])
    argv = [sys.executable, "-c", REALLY, kills, *command]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(argv, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    copies = {
        moment: ends(node, command, code, kills=numbers, after=moment == "after")[-1] for moment in ("before", "after")
    }
    for number, moment, host in killed:
        assert everything(host) == everything(copies[moment][number]), (number, moment)
        found, output = node.run(host, *command)
        assert (found, host.tree(), host.state()) == (code, wanted, state), (number, moment, output)


def test_what_is_left_is_not_finished_while_a_container_uses_a_gpu(node):
    command, code = operation(node, "upgrade")
    host = ends(node, command, code, kills={20})[-1][20]
    host.container(900)
    before = host.tree()
    code, output = node.run(host, *command)
    assert code == 3
    assert "pid 900" in output
    assert "to finish the upgrade of cGPU 1.5.12" in output
    assert host.tree() == before
    host.end(900)
    assert node.run(host, *command)[0] == 0
    assert host.works("1.5.12")


def test_when_only_the_record_was_missing_it_is_written_under_running_containers(node):
    command, code = operation(node, "upgrade")
    _, state, effects, _ = ends(node, command, code)
    host = ends(node, command, code, kills={effects - 2})[-1][effects - 2]
    assert "journal.json" in host.state()
    host.container(900)
    before = host.tree()
    assert node.run(host, *command)[0] == 0
    assert (host.tree(), host.state()) == (before, state)
    assert host.works("1.5.12")


def test_a_reading_command_says_what_is_left_and_leaves_it(node):
    command, code = operation(node, "upgrade")
    host = ends(node, command, code, kills={20})[-1][20]
    before = host.tree(), host.state()
    cli.run(["status", "--root", str(host.root)], host.make())
    output = node.capsys.readouterr()
    assert "! unfinished: upgrade of cGPU 1.5.12, goes on" in output.out
    assert (host.tree(), host.state()) == before
