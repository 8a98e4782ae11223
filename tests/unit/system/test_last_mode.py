"""What the agent keeps on disk: whole files, and the mode in force."""

import ast
import json
import os
import stat
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import Mode
from gpuagent.system import atomic_file
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.backoff import Backoff
from gpuagent.system.last_mode import LastMode

ROOT = Path(__file__).parents[3]
MAY_WRITE = {
    "gpuagent/system/atomic_file.py": "new files only, under names that cannot be guessed",
    "gpuagent/system/output.py": "/dev/null",
    "gpuagent/host/nvidia_driver.py": "opens the driver's device node, and creates nothing",
    "gpuagent/isolation/mps/daemon.py": "TemporaryFile has no name",
    "installer/gpuisolation/cli.py": "a new TemporaryDirectory",
    "installer/gpuisolation/host/files.py": "exclusive creation; set_proc writes to the kernel",
    "installer/gpuisolation/change/package.py": "only in the TemporaryDirectory of its callers, and no member is a link",
    "installer/gpuisolation/change/changer.py": "a new TemporaryDirectory",
    "installer/gpuisolation/change/change_lock.py": "the lock: O_NOFOLLOW, and nothing is written",
    "kubectl/onefile.py": "runs in the repository, not on a node",
}
"""Modules that create files, and why that is safe in a folder that others may write."""


def creates_files(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        opens = name == "open" or name.endswith(".open")
        if name.endswith((".write_text", ".write_bytes", ".copyfile", ".touch")) or name.startswith("tempfile."):
            return True
        if opens and any(set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts):
            return True
        if opens and any(flag in ast.unparse(node) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT")):
            return True
    return False


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """A folder in which another user guessed names, and that user's target."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "state"
    folder.mkdir()
    for name in (f"mode.{os.getpid()}", f".mode.json.{os.getpid()}", ".mode.json", "mode.json"):
        (folder / name).symlink_to(victim)
    return folder, victim


def test_a_link_that_another_user_left_is_not_followed(hostile):
    folder, victim = hostile
    write_whole(folder / "mode.json", "new")
    assert victim.read_text() == "untouched"
    assert (folder / "mode.json").read_text() == "new"
    assert not (folder / "mode.json").is_symlink()


def test_the_scratch_file_is_new_and_its_name_is_never_the_same(tmp_path, monkeypatch):
    seen = []
    real = os.open

    def noting(path, flags, *rest, **named):
        seen.append((str(path), flags))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", noting)
    for _ in range(2):
        write_whole(tmp_path / "mode.json", "new")
    made = [(path, flags) for path, flags in seen if flags & os.O_CREAT]
    assert len({path for path, _ in made}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in made)


def test_a_write_that_fails_leaves_the_file_as_it_was_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "mode.json"
    write_whole(path, "old")
    monkeypatch.setattr(
        atomic_file.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["mode.json"]
    assert path.read_text() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_module_that_creates_files_is_known_to_do_it_safely():
    folders = ("gpuagent", "installer", "kubectl")
    found = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if creates_files(path)
    }
    assert found == MAY_WRITE.keys(), "create files with write_whole, or with O_EXCL and a reason here"


def test_a_mode_that_could_not_be_saved_is_saved_later(tmp_path):
    now = 0.0
    folder = tmp_path / "state"
    folder.write_text("in the way")
    kept = LastMode(folder, clock=lambda: now, backoff=Backoff(1.0, spread=lambda: 0.5))
    assert kept.load() is None
    problem = kept.keep(Mode.SHARE)
    assert problem is not None
    assert "mode share could not be saved" in problem
    assert str(folder) in problem
    folder.unlink()
    assert kept.keep(Mode.SHARE) == problem, "not before the pause is over"
    now = 1.0
    assert kept.keep(Mode.SHARE) is None
    assert kept.saved is LastMode(folder).load() is Mode.SHARE


def test_that_a_scheduler_decides_is_kept_for_good(tmp_path):
    kept = LastMode(tmp_path)
    assert kept.load() is None
    assert not kept.schedulers
    assert kept.keep(Mode.SHARE) is None
    assert kept.keep(schedulers=True) is None
    assert kept.keep(Mode.TOPOLOGY) is None
    again = LastMode(tmp_path)
    assert again.load() is Mode.TOPOLOGY
    assert again.schedulers


def test_without_a_mode_a_scheduler_is_kept_too(tmp_path):
    assert LastMode(tmp_path).keep(schedulers=True) is None
    again = LastMode(tmp_path)
    assert again.load() is None
    assert again.schedulers


@pytest.mark.parametrize(
    "text", ["", "[]", '{"mode": "nonsense"}', "\xff", '{"mode": "share"}', '{"schedulers": null}']
)
def test_in_a_file_that_cannot_be_read_a_scheduler_may_have_been(tmp_path, text):
    (tmp_path / "mode.json").write_text(text)
    kept = LastMode(tmp_path)
    kept.load()
    assert kept.schedulers


def test_a_file_that_cannot_be_replaced_may_lack_a_scheduler(tmp_path, monkeypatch):
    (tmp_path / "mode.json").write_text(json.dumps({"mode": "share"}))
    monkeypatch.setattr("gpuagent.system.last_mode.os.access", lambda *_: False)
    monkeypatch.setattr(
        "gpuagent.system.last_mode.write_whole", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only"))
    )
    kept = LastMode(tmp_path)
    assert kept.load() is Mode.SHARE
    assert kept.schedulers
    assert "whether a scheduler chooses GPUs on this node could not be saved" in (kept.keep(Mode.SHARE) or "")


def test_that_no_scheduler_decides_is_stored_only_once_it_is_known(tmp_path):
    """An agent that was killed before it saw the node's pods knows nothing."""
    kept = LastMode(tmp_path)
    kept.load()
    assert kept.keep(Mode.SHARE) is None
    again = LastMode(tmp_path)
    again.load()
    assert again.schedulers
    assert again.keep(schedulers=False) is None
    third = LastMode(tmp_path)
    third.load()
    assert third.scheduler_seen is third.schedulers is False


def test_a_known_scheduler_outlasts_a_mode_that_is_not_known(tmp_path):
    (tmp_path / "mode.json").write_text('{"mode": "of a later version", "schedulers": true}')
    kept = LastMode(tmp_path)
    assert kept.load() is None
    assert kept.keep(Mode.SHARE, schedulers=False) is None
    assert json.loads((tmp_path / "mode.json").read_text()) == {"mode": "share", "schedulers": True}


def test_in_a_folder_that_can_never_be_written_a_scheduler_may_have_been(tmp_path, monkeypatch):
    """The file is then missing after every restart."""
    monkeypatch.setattr("gpuagent.system.last_mode.os.access", lambda *_: False)
    kept = LastMode(tmp_path / "state")
    assert kept.load() is None
    assert kept.schedulers


def test_a_folder_that_is_still_to_be_made_is_a_first_run(tmp_path):
    kept = LastMode(tmp_path / "to be" / "made")
    assert kept.load() is None
    assert not kept.schedulers


def test_the_pauses_grow_while_a_mode_cannot_be_saved(tmp_path, monkeypatch):
    now, tries = 0.0, []

    def failing(*_):
        tries.append(now)
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("gpuagent.system.last_mode.write_whole", failing)
    kept = LastMode(tmp_path, clock=lambda: now, backoff=Backoff(1.0, spread=lambda: 0.5))
    while now < 200:
        assert "Read-only file system" in (kept.keep(Mode.SHARE) or "")
        now += 0.5
    assert tries[:6] == [0, 1, 3, 7, 15, 31]
    assert {later - earlier for earlier, later in zip(tries[6:], tries[7:], strict=False)} == {30}


def test_a_switch_taken_back_while_nothing_can_be_saved_is_no_problem_any_more(tmp_path, monkeypatch):
    (tmp_path / "mode.json").write_text(json.dumps({"mode": "topology"}))
    kept = LastMode(tmp_path)
    assert kept.load() is Mode.TOPOLOGY
    monkeypatch.setattr(
        "gpuagent.system.last_mode.write_whole", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only"))
    )
    assert "after a restart mode topology is in force" in (kept.keep(Mode.SHARE) or "")
    assert kept.keep(Mode.TOPOLOGY) is None


def test_a_mode_in_force_that_is_not_in_the_file_is_a_problem_during_the_pause_too(tmp_path, monkeypatch):
    (tmp_path / "mode.json").write_text(json.dumps({"mode": "topology"}))
    kept = LastMode(tmp_path, clock=lambda: 0.0)
    kept.load()
    monkeypatch.setattr(
        "gpuagent.system.last_mode.write_whole", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only"))
    )
    for mode in (Mode.SHARE, Mode.TOPOLOGY, Mode.SHARE, Mode.CORE_MEM):
        problem = kept.keep(mode)
        assert (problem is None) is (mode is kept.saved)
        assert problem is None or f"mode {mode} could not be saved" in problem
