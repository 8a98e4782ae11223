"""What can go wrong around the daemon and the compute modes, each said with what to do."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuagent.host.mps_client import HangsError, MpsError
from gpuagent.isolation.mps import daemon_record as mps_record
from gpuagent.isolation.mps.daemon import MpsDaemon, MpsDaemons
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.isolation.mps.exclusive import ExclusiveModes
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S


@pytest.fixture
def record(host) -> MpsRecord:
    return MpsRecord(host.root / "state")


def daemon(
    host: MpsHost,
    record: MpsRecord,
    program: Path | None = None,
    *,
    ask_s: float = PATIENCE_S,
    start_s: float = PATIENCE_S,
) -> MpsDaemon:
    return daemons(host, record, program, ask_s=ask_s, start_s=start_s).of_gpu("GPU-0a")


def daemons(
    host: MpsHost,
    record: MpsRecord,
    program: Path | None = None,
    *,
    ask_s: float = PATIENCE_S,
    start_s: float = PATIENCE_S,
) -> MpsDaemons:
    return MpsDaemons(
        str(program or host.control),
        record,
        own=host.own,
        logs=host.logs,
        known=(host.ack,),
        ask_s=ask_s,
        start_s=start_s,
    )


def script(host: MpsHost, body: str) -> Path:
    path = host.root / "script"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def blocked(host: MpsHost) -> MpsRecord:
    """A record that cannot be written: its directory is a file."""
    (host.root / "file").write_text("")
    record = MpsRecord(host.root / "file" / "state")
    record.daemons = {}
    return record


def test_a_daemon_that_hangs_is_taken_to_so_that_no_second_one_is_started(host, record):
    host.run(host.ack, "-d")
    host.steer(host.ack, hang=True)
    found = daemons(host, record, ask_s=0.5).find_for_node()
    assert found.pipe_dir == host.ack
    with pytest.raises(HangsError):
        found.control.alive()


def test_files_that_a_dead_daemon_left_are_no_daemon(host, record):
    host.run(host.ack, "-d")
    host.run(host.own, "-d")
    for pipes in (host.own, host.ack):
        (pipes / "control").unlink()
        (pipes / "control").write_text("")
    assert daemons(host, record).find_for_node() is None


def test_a_program_that_does_not_come_back(host, record):
    with pytest.raises(MpsError, match=r"script -d -M was not in the background after 0\.3 s"):
        daemon(host, record, script(host, "exec sleep 60"), start_s=0.3).start()


def test_a_program_that_is_none(host, record):
    path = host.root / "empty"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(MpsError, match="Exec format error"):
        daemon(host, record, path).start()


def test_a_daemon_that_is_gone_at_once_is_reported_with_its_log(host, record, monkeypatch):
    ticks = itertools.count(step=PATIENCE_S / 2)
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _: None)
    monkeypatch.setattr("gpuagent.isolation.mps.daemon.time", clock)
    body = f'[ "$1" = -d ] && echo "no GPU" >> {host.logs / host.pipes.name}/control.log && exit 0; echo Cannot find MPS control daemon process; exit 1'
    with pytest.raises(MpsError, match=r"started and is gone: .*its log ends with: no GPU"):
        daemon(host, record, script(host, body)).start()


def test_nothing_is_started_that_cannot_be_noted(host):
    with pytest.raises(MpsError, match="cannot be noted"):
        daemon(host, blocked(host)).start()
    assert not (host.pipes / "control").exists()


def test_without_the_program_nothing_can_be_asked_or_started(host, record):
    missing = daemon(host, record, host.root / "missing")
    for call in (missing.start, lambda: missing.control):
        with pytest.raises(MpsError, match="was not found on PATH"):
            call()


def test_a_daemon_that_is_gone_already_needs_no_quit(host, record):
    ours = daemon(host, record)
    ours.start()
    record.started("GPU-0a", 0)
    (host.pipes / "control").unlink()
    assert ours.quit()
    assert record.daemons == {}


def test_a_gpu_that_nvidia_smi_does_not_list(host, record):
    host.modes(GPU_0a="Default")
    with pytest.raises(MpsError, match="does not list GPU GPU-9a"):
        ExclusiveModes(record, smi=str(host.smi)).hold(["GPU-9a"])


def test_a_mode_that_cannot_be_noted_is_not_changed(host):
    host.modes(GPU_0a="Default")
    with pytest.raises(MpsError, match="cannot be noted, so it stays"):
        ExclusiveModes(blocked(host), smi=str(host.smi)).hold(["GPU-0a"])
    assert host.mode("GPU-0a") == "Default"


def test_a_gpu_that_is_gone_keeps_its_note(host, record):
    host.modes(GPU_0a="Default")
    modes = ExclusiveModes(record, smi=str(host.smi))
    modes.hold(["GPU-0a"])
    host.modes(GPU_1a="Default")
    modes.give_back()
    assert record.modes == {"GPU-0a": "Default"}
    assert MpsRecord(host.root / "state").modes == {"GPU-0a": "Default"}


def test_a_mode_that_is_given_back_but_not_forgotten_is_reported(host, record, monkeypatch, caplog):
    host.modes(GPU_0a="Default")
    modes = ExclusiveModes(record, smi=str(host.smi))
    modes.hold(["GPU-0a"])
    monkeypatch.setattr(mps_record, "write_whole", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    modes.give_back()
    assert "Failed to note a compute mode" in caplog.text
    assert host.mode("GPU-0a") == "Default"


def test_nvidia_smi_is_missing_hangs_or_cannot_be_run(host, record):
    with pytest.raises(MpsError, match="was not found, which sets compute modes"):
        ExclusiveModes(record, smi=str(host.root / "missing")).hold(["GPU-0a"])
    with pytest.raises(MpsError, match=r"took more than 0\.3 s"):
        ExclusiveModes(record, smi=str(script(host, "exec sleep 60")), deadline_s=0.3).hold(["GPU-0a"])
    path = host.root / "empty"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(MpsError, match="cannot be run: Exec format error$"):
        ExclusiveModes(record, smi=str(path)).hold(["GPU-0a"])
