"""What the image is made from is pinned, and says the same in every place."""

import json
import re
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from image import __main__ as build
from image.sbom import BILL, of_lock

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_bill_of_materials_is_that_of_the_lock_file():
    bill = json.loads(BILL.read_text())
    for component in bill["components"]:
        (license_,) = component.pop("licenses")
        assert re.fullmatch(r"[A-Za-z0-9.-]+( (AND|OR) [A-Za-z0-9.-]+)*", license_["expression"]), component["name"]
    assert bill == of_lock(), "run `make sbom`"


def test_every_stage_begins_with_nothing_or_with_a_base_of_one_digest():
    bases = re.findall(r"^FROM (?:--\S+ )?(\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == [build.base(), "scratch"]
    # Dependabot reads no variables.
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", build.base())


def test_the_archive_and_the_time_of_files_are_of_one_date():
    dates = re.findall(r"http://snapshot\.debian\.org/archive/debian(?:-security)?/(\S+)", DOCKERFILE)
    epoch = datetime.fromtimestamp(int(build.epoch()), UTC)
    assert dates == [epoch.strftime("%Y%m%dT%H%M%SZ")] * 2


def test_all_lock_files_name_one_version_of_a_package():
    everything = pins("requirements-dev.lock")
    for lock in ("requirements.lock", "requirements-scheduler.lock", "requirements-build.lock"):
        assert pins(lock).items() <= everything.items()
        assert "hatchling" in everything


def test_everything_that_the_build_copies_is_let_through():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source.rstrip("/").partition("/")[0]
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in line.split()
    }
    assert copied == allowed
    assert [name for name in allowed if not (ROOT / name).exists()] == []


def test_pips_settings_reach_the_build_in_a_file_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:hidden@index.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a/local/folder")
    monkeypatch.setenv("PIP_CERT", "/certificates.crt")
    arguments = build.secrets(tmp_path)
    file = tmp_path / "pip.conf"
    assert arguments == ["--secret=id=ca,src=/certificates.crt", f"--secret=id=pip,src={file}"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines()
    assert {"index-url = https://someone:hidden@index.example/simple", "cert = /run/secrets/ca"} <= set(lines)
    assert "/a/local/folder" not in file.read_text()


TAG = "registry.example.com/gpuagent:1"


def build_with(monkeypatch, tmp_path, status: int, *more: str, engine: str = "docker", tag: str = TAG) -> int:
    """Of `python -m image`, where the engine's stand-in answers everything and builds with this exit status."""
    program = tmp_path / engine
    pushed = tmp_path / "pushed"
    program.write_text(
        f'#!/bin/sh\ncase "$1 $2" in "buildx build"|bud*) exit {status};; push*) echo "$0 $*" >> {pushed};; esac; exit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["image", "--tag", tag, *more])
    return build.main()


@pytest.mark.parametrize("engine", ["docker", "buildah"])
def test_an_image_is_pushed_by_the_program_that_built_it(monkeypatch, tmp_path, capsys, engine):
    assert build_with(monkeypatch, tmp_path, 0, "--push", engine=engine) == 0
    assert (tmp_path / "pushed").read_text().split() == [str(tmp_path / engine), "push", TAG]
    assert f"Built {TAG} with {engine}, and pushed it" in capsys.readouterr().out


def test_a_push_that_can_go_nowhere_is_refused_before_the_build(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        build_with(monkeypatch, tmp_path, 0, "--push", tag="gpuagent:1")
    assert "needs a registry in the name" in capsys.readouterr().err


REFUSED_WITHOUT_CONTAINERD_STORE = "dest="
REFUSED_WITH_CONTAINERD_STORE = "rewrite-timestamp=true"


@pytest.mark.parametrize("refused", [REFUSED_WITHOUT_CONTAINERD_STORE, REFUSED_WITH_CONTAINERD_STORE])
def test_dockers_default_builder_makes_an_archive(monkeypatch, tmp_path, refused):
    docker = tmp_path / "docker"
    docker.write_text(
        f"""#!/bin/sh
case "$1 $2" in
"buildx build") case "$*" in *{refused}*) exit 1;; esac;;
save*) echo "$3" > "${{2#--output=}}";;
esac
"""
    )
    docker.chmod(0o755)
    archive = tmp_path / "gpuagent.tar"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["image", "--tag", TAG, "--archive", str(archive)])
    assert build.main() == 0
    assert archive.read_text() == f"{TAG}\n"


def test_a_build_ends_with_the_command_that_pushes(monkeypatch, tmp_path, capsys):
    assert build_with(monkeypatch, tmp_path, 0) == 0
    assert capsys.readouterr().out.endswith("docker push registry.example.com/gpuagent:1\n")


def test_a_build_that_fails_says_what_it_needs(monkeypatch, tmp_path, capsys):
    assert build_with(monkeypatch, tmp_path, 17) == 1
    error = capsys.readouterr().err
    assert "docker ended with 17" in error
    assert "docs/image.md" in error


def test_the_time_and_the_version_are_found():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", build.version())
    assert build.epoch().isdigit()
