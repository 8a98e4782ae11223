"""JSON files that other programs, or former runs, wrote."""

import json
from pathlib import Path
from typing import Any


def load(path: Path) -> Any:  # noqa: ANN401 (whatever the file has)
    """The value in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON, or nested too deeply. The text is for people.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as err:
        raise ValueError("it is not text in UTF-8") from err
    except RecursionError as err:
        raise ValueError("its JSON is nested too deeply") from err
