"""A watch that cannot begin is visible where only an operator can help."""

import errno
import logging
import threading

import pytest

from gpuagent.system import inotify
from gpuagent.system.inotify import DirectoryWatch
from standin.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "fs.inotify.max_user_instances"),
        (errno.ENOSPC, "fs.inotify.max_user_watches"),
        (errno.ENOENT, ""),
    ],
)
def test_a_node_without_a_free_instance_is_a_warning_once(tmp_path, monkeypatch, caplog, number, words):
    monkeypatch.setattr(inotify, "RETRY_S", 0.001)
    looked, calls = threading.Event(), []

    def fail(_watch):
        raise OSError(number, "inotify_init1 failed")

    def changed():
        calls.append(1)
        if len(calls) > 5:
            looked.set()

    monkeypatch.setattr(DirectoryWatch, "_open", fail)
    watch = DirectoryWatch(tmp_path, changed)
    with caplog.at_level(logging.DEBUG):
        watch.start()
        assert looked.wait(PATIENCE_S), "without a watch, the directory is read again and again"
        watch.stop()
    records = [record for record in caplog.records if record.name == inotify.log.name]
    assert len(records) == 1
    assert (records[0].levelno == logging.WARNING) is bool(words)
    assert words in getattr(records[0], "advice", "")
