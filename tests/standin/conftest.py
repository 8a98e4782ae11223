"""A kubelet and plugins that are gone when the test ends, with every thread of theirs."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.kubelet import Kubelet
from standin.waiting import PATIENCE_S
from tests.standin.sample_plugin import MEM, SamplePlugin


@pytest.fixture
def root() -> Iterator[Path]:
    # Not tmp_path: a socket path ends at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + PATIENCE_S
    while left := [one for one in threading.enumerate() if one not in before]:
        assert time.monotonic() < end, left
        left[0].join(0.3)


@pytest.fixture
def kubelet(root: Path) -> Iterator[Callable[..., Kubelet]]:
    made: list[Kubelet] = []

    def make(version: str = "1.36", **arguments: Any) -> Kubelet:
        made.append(Kubelet(root, version, **arguments))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def plugin(root: Path) -> Iterator[Callable[..., SamplePlugin]]:
    made: list[SamplePlugin] = []

    def make(
        listed: list[dp.Device] | None = None,
        resource: str = MEM,
        *,
        name: str = "",
        register: bool = True,
        **options: bool,
    ) -> SamplePlugin:
        one = SamplePlugin(root / "device-plugins", resource, listed, name=name)
        made.append(one)
        one.options = dp.DevicePluginOptions(**options)
        if register:
            one.register()
        return one

    yield make
    for one in made:
        one.stop()
