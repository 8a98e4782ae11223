"""Files that other programs, former runs or hands wrote: whatever is in them, a value or an error for people."""

import json
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuagent.domain.sharing.grant import KEPT_VARIABLES
from gpuagent.host import mps_client
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.kubelet import checkpoint
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.settings import settings as agent_settings
from gpuagent.settings.table import ConfigError
from gpuagent.simulation import boxes
from gpuagent.system import fence_file
from gpuagent.system.last_mode import LastMode
from gpuagent.system.resize_file import ResizeFile

DEEP = b"[" * 100_000
words = st.text(string.ascii_letters + string.punctuation + "é\0\n", max_size=10)
numbers = st.one_of(st.integers(), st.sampled_from([float("inf"), float("-inf"), float("nan"), 10**30, -1]))
odd = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


def read_checkpoint(path: Path) -> None:
    for entry in checkpoint.read(path.parent):
        assert isinstance(entry.pod_uid, str)
        assert isinstance(entry.container, str)
        assert isinstance(entry.resource, str)
        assert all(isinstance(unit, str) for unit in entry.ids)
        assert entry.kept_env.keys() <= KEPT_VARIABLES


def read_claim(path: Path) -> None:
    for claim in ClaimFiles(path.parent.parent, path.parent).read().values():
        hash(claim)


def read_mps_record(path: Path) -> None:
    record = MpsRecord(path.parent)
    assert all(isinstance(pid, int) for pid in record.daemons.values())


def read_settings(path: Path) -> None:
    with_file = {"config": str(path)}
    try:
        agent_settings.load(with_file, {"NODE_NAME": "n"})
    except ConfigError as err:
        no_library_words(str(err))


def read_box(path: Path) -> None:
    try:
        boxes.load(str(path))
    except boxes.BoxError as err:
        no_library_words(str(err))


def no_library_words(text: str) -> None:
    assert "codec" not in text
    assert "recursion" not in text
    assert "Error" not in text


READERS: dict[str, Callable[[Path], object]] = {
    f"kubelet/{checkpoint.FILE_NAME}": read_checkpoint,
    "claims/u1.json": read_claim,
    "state/mode.json": lambda path: LastMode(path.parent).load(),
    "state/mps.json": read_mps_record,
    "state/resizes.json": lambda path: ResizeFile(path.parent).load(),
    "fence.json": fence_file.read,
    f"mps/{mps_client.PID_FILE}": lambda path: mps_client.daemon_pid(path.parent),
    "config.toml": read_settings,
    "box.toml": read_box,
}
EXAMPLES = {
    f"kubelet/{checkpoint.FILE_NAME}": {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": "u",
                    "ContainerName": "c",
                    "ResourceName": "r",
                    "DeviceIDs": {"0": ["a-mc-1"]},
                    "AllocResp": "",
                }
            ],
            "RegisteredDevices": {},
        },
        "Checksum": 1,
    },
    "claims/u1.json": {"uid": "u1", "namespace": "n", "name": "c", "layer": "mps", "gpus": [{"uuid": "GPU-1"}]},
    "state/mode.json": {"mode": "share"},
    "state/resizes.json": {
        "v": 1,
        "pods": {
            "u": {"namespace": "n", "name": "p", "limits": {"c": 12}, "most": {"c": 12}, "extra": ["jgl5nn3brc-mc-12"]},
        },
    },
    "state/mps.json": {"daemon": 1, "daemons": {"GPU-1": 7}, "modes": {"GPU-1": "Default"}},
}
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def use(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    READERS[name](path)


@pytest.mark.parametrize("name", READERS)
@few
@given(content=st.one_of(st.binary(max_size=60), odd.map(lambda value: json.dumps(value).encode())))
@example(content=DEEP)
@example(content=b"a=" + DEEP)
@example(content=b"\xff\xfe{}")
@example(content=b"9" * 5000)
def test_any_content(tmp_path, name, content):
    use(tmp_path, name, content)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Where a document has a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


@pytest.mark.parametrize("name", EXAMPLES)
@few
@given(data=st.data())
def test_a_right_file_with_one_odd_value(tmp_path, name, data):
    content = json.loads(json.dumps(EXAMPLES[name]))
    place = data.draw(st.sampled_from(places(content)))
    value = data.draw(odd)
    if place:
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
    else:
        content = value
    use(tmp_path, name, json.dumps(content).encode())
