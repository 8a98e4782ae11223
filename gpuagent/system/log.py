"""Log lines: text for people, or one JSON object a line."""

import atexit
import json
import logging
import logging.handlers
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from gpuagent.system.printable import error_words, escaped

log = logging.getLogger(__name__)

LAST_LINES_S = 1.0
"""How long a process that ends may take to write its last log lines."""
_MOST_WARNINGS = 100
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the call of the logger gave as `extra`."""
    fields = {}
    for key, value in record.__dict__.items():
        if key not in _STANDARD:
            fields[key] = _plain(value)
    return fields


def _plain(value: object) -> Any:  # noqa: ANN401 (a JSON value)
    """A field's value as JSON, so that no line shows a Python repr."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        # Sorted, so that equal sets look equal.
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    has_words = isinstance(value, OSError) and value.strerror
    if isinstance(value, Exception) and not has_words:
        return f"{type(value).__name__}: {value}"
    return error_words(value)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO  Registered resource=aliyun.com/gpu-mem``."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        words = [_stamp(record), level, escaped(record.getMessage())]
        for key, value in _fields(record).items():
            words.append(f"{key}={_quoted(value)}")
        lines = [" ".join(words).rstrip()]
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            lines += [escaped(line) for line in trace.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escaped(json.dumps(line, default=str, ensure_ascii=False))


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    needs_no_quotes = text and " " not in text and text.isprintable()
    if needs_no_quotes:
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


class _Later(logging.handlers.QueueHandler):
    """Queues records unchanged; the listener formats and writes them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


class _Writer(logging.handlers.QueueListener):
    """Writes the queued records from a thread of its own."""

    def stop(self) -> None:
        """Write what is queued, and end the thread.

        Returns after `LAST_LINES_S` in any case: if nothing reads the log, for example because the disk of the
        container's log is full, a write waits forever. The process must end all the same.
        """
        writing = self._thread
        if writing is not None:
            self._thread = None
            self.enqueue_sentinel()
            writing.join(LAST_LINES_S)


def setup(log_format: str, level: str) -> Callable[[], None]:
    """Send all log lines to stderr in `log_format` (``text`` or ``json``), from a thread of their own.

    Returns a function that writes the last lines and ends the thread, for processes that end without `atexit`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = _Writer(lines, handler)
    # By force, because a library may have set up logging before.
    logging.basicConfig(handlers=[_Later(lines)], level=level.upper(), force=True)
    listener.start()
    atexit.register(listener.stop)
    _take_over()
    return listener.stop


def _take_over() -> None:
    """Log the lines that Python and libraries would print to stderr."""
    warnings.showwarning = _WarningLog().log_once
    threading.excepthook = _log_thread
    sys.unraisablehook = _log_unraisable
    sys.excepthook = lambda _, err, __: log.critical("Program failed", exc_info=err)


class _WarningLog:
    """Logs Python's warnings; of equal ones only the first.

    For example, an HTTP library that must not verify TLS warns of every request.
    """

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def log_once(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        name = category.__name__
        text = " ".join(str(message).split())
        if (name, text) in self._logged or len(self._logged) >= _MOST_WARNINGS:
            return
        self._logged.add((name, text))
        log.warning("Python warning", extra={"category": name, "text": text})


def _log_thread(args: threading.ExceptHookArgs) -> None:
    is_exit = issubclass(args.exc_type, SystemExit)
    if args.exc_value is None or is_exit:
        return
    name = args.thread.name if args.thread else ""
    log.critical("Thread failed", exc_info=args.exc_value, extra={"thread_name": name})


def _log_unraisable(args: Any) -> None:  # noqa: ANN401 (sys.UnraisableHookArgs is not there at run time)
    text = args.err_msg or "Exception ignored in"
    name = getattr(args.object, "__qualname__", type(args.object).__qualname__)
    log.error("Exception ignored", exc_info=args.exc_value, extra={"where": f"{text} {name}"})
