"""A stand-in API server, and the command that reads it."""

from collections.abc import Callable, Iterator

import pytest

from inspectcgpu.cli import run
from standin.api.server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer("n0") as standin:
        yield standin


@pytest.fixture
def config(server, tmp_path) -> str:
    return str(server.write_kubeconfig(tmp_path / "config"))


@pytest.fixture
def call(capsys, config) -> Callable[..., tuple[int, str, str]]:
    def called(*arguments, environ=None):
        try:
            code = run([*(("--kubeconfig", config) if environ is None else ()), *arguments], environ or {})
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err

    return called
