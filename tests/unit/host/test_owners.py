"""Whose a path is, and which MPS daemons are trusted: those of root and of this user, where no other can replace them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.host.mps_client import PID_FILE, MpsError, make_directories, untrusted
from gpuagent.host.owners import foreign

OTHER_USER = 65534


@pytest.fixture
def give_away(monkeypatch) -> Callable[[Path], None]:
    """Make a path another user's; without root's right to do that, make this process another user."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, OTHER_USER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)

    return give


@pytest.fixture
def pipes(tmp_path: Path) -> Path:
    """A pipe directory as NVIDIA's daemon leaves it: everyone may write in it."""
    folder = tmp_path / "nvidia-mps"
    folder.mkdir()
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        here = Path.cwd()
        os.chdir(folder)  # the path may be too long for a socket
        one.bind("control")
        os.chdir(here)
    (folder / PID_FILE).write_text("1")
    return folder


def test_roots_own_paths_are_trusted(tmp_path):
    for path in (Path("/"), Path("/proc/self"), Path("/tmp"), tmp_path):  # noqa: S108 (sticky)
        assert foreign(path) is None


def test_a_path_of_another_user_is_foreign_and_so_is_all_below(tmp_path, give_away):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    give_away(tmp_path / "a")
    assert "belongs to user" in (foreign(tmp_path / "a") or "")
    assert foreign(inner) == foreign(tmp_path / "a")


@pytest.mark.parametrize(("mode", "shared", "is_foreign"), [
    (0o777, False, True), (0o1777, False, False), (0o777, True, False), (0o755, False, False),
])  # fmt: skip
def test_a_directory_where_others_may_replace_files(tmp_path, mode, shared, is_foreign):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    assert (foreign(folder, shared=shared) is not None) is is_foreign
    (folder / "inner").mkdir()
    # A user that may write in a directory without the sticky bit may replace what is in it.
    assert (foreign(folder / "inner", shared=shared) is not None) is (mode == 0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another group")
@pytest.mark.parametrize(("group", "is_foreign"), [(104, False), (0, False), (100, True), (1000, True)])
def test_programs_of_the_distribution_may_write_where_ubuntu_has_its_logs(tmp_path, group, is_foreign):
    """Ubuntu's rsyslog gives /var/log to root:syslog, writable for the group."""
    logs = tmp_path / "log"
    logs.mkdir()
    os.chown(logs, 0, group)
    logs.chmod(0o775)
    assert (foreign(logs) is not None) is is_foreign
    if not is_foreign:
        make_directories(tmp_path / "pipes", logs / "gpuagent" / "mps")


def test_a_link_counts_by_its_own_place_and_by_its_target(tmp_path, give_away):
    for name in ("safe", "target"):
        (tmp_path / name).mkdir()
    link = tmp_path / "safe" / "link"
    link.symlink_to("../target")
    assert foreign(link) is None
    (tmp_path / "target").chmod(0o777)
    assert "other users may replace what is in" in (foreign(link) or "")
    (tmp_path / "target").chmod(0o755)
    give_away(link)
    assert "belongs to user" in (foreign(link) or "")


def test_links_that_go_round_are_no_path(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        foreign(tmp_path / "a")


def test_a_daemon_of_ours_is_trusted_although_everyone_may_write_in_its_directory(pipes):
    assert untrusted(pipes) is None
    assert untrusted(pipes / "missing") is None, "there is none"


@pytest.mark.parametrize("name", [".", "..", "control", PID_FILE])
def test_a_daemon_is_not_trusted_where_another_user_owns(pipes, name, give_away):
    give_away(pipes / name)
    why = untrusted(pipes) or ""
    assert why.startswith(f"the MPS control daemon at {pipes} is not used, because another user may run it: ")
    assert "belongs to user" in why
    assert "run it as root" in why


def test_a_daemon_is_not_trusted_where_a_file_is_a_link(pipes):
    (pipes / "control").rename(pipes / "aside")
    (pipes / "control").symlink_to("aside")
    assert "control is a link" in (untrusted(pipes) or "")


def test_a_daemon_is_not_trusted_where_its_directory_can_be_replaced(pipes):
    pipes.parent.chmod(0o777)
    assert "other users may replace what is in" in (untrusted(pipes) or "")


def test_a_daemon_is_not_trusted_that_runs_as_another_user(pipes, monkeypatch):
    monkeypatch.setattr("gpuagent.host.mps_client.daemon_pid", lambda _: 1)
    monkeypatch.setattr(
        "gpuagent.host.mps_client.foreign_owner", lambda what, _: f"{what} belongs" if "/proc" in str(what) else None
    )
    assert "/proc/1 belongs" in (untrusted(pipes) or "")


def test_a_directory_that_another_user_made_is_not_opened_to_all(tmp_path, give_away):
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "pipes").symlink_to(secret)
    give_away(tmp_path / "open" / "pipes")
    with pytest.raises(MpsError, match="is not used: .*Choose one that only root can replace"):
        make_directories(tmp_path / "open" / "pipes")
    assert secret.stat().st_mode & 0o777 == 0o700
    make_directories(tmp_path / "new" / "pipes")
    assert (tmp_path / "new" / "pipes").stat().st_mode & 0o777 == 0o755
