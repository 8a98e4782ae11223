"""A fake host, and the installer run on it."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuisolation import cli
from tests.unit.installer.fakehost import FakeHost, package


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _logging():
    """The command line sets up the root logger; whoever comes next finds it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def host(tmp_path) -> FakeHost:
    return FakeHost(tmp_path / "root")


@pytest.fixture
def package_of(tmp_path) -> Callable[..., Path]:
    """A package folder by version; made once."""

    def make(version: str = "1.5.10", **kinds: bool) -> Path:
        folder = tmp_path / "packages" / "-".join([version, *kinds])
        return folder if folder.exists() else package(folder, version, **kinds)

    return make


@pytest.fixture
def run(host, capsys):
    """Run one command on the fake host."""

    def run(*arguments: str | Path) -> Result:
        command, *rest = map(str, arguments)
        try:
            code = cli.run([command, "--root", str(host.root), *rest], host.make())
        except SystemExit as end:
            code = end.code
        finally:
            out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def installed(host, run, package_of):
    """A node with cGPU 1.5.10."""
    result = run("install", "--package", package_of("1.5.10"))
    assert result.code == 0, result.err
    return host
