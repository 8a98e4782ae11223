"""The settings of a program as one table: a flag beats the environment, then come the file and the default."""

import argparse
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuagent.settings import values

T = TypeVar("T")

_OF_A_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)$")
"""Variables that Kubernetes sets for Services whose names begin with the program's."""


class ConfigError(Exception):
    """A setting that an operator must fix; the program does not start."""


def setting(
    default: Any,  # noqa: ANN401
    parse: Callable[[str], Any],
    text: str,
    *,
    metavar: str = "",
    env: str = "",
) -> Any:  # noqa: ANN401 (a field of any type)
    """A field of a dataclass of settings.

    Args:
        default: its value where it is set nowhere.
        parse: reads a text; raises ValueError that says what is wrong with it.
        text: help.
        metavar: stands for the value in the help; empty for the last word of the field's name.
        env: a second environment variable, which yields to the first.
    """
    return field(default=default, metadata={"parse": parse, "help": text, "metavar": metavar, "env": env})


def setting_key(name: str) -> str:
    """The name of a field as a flag, without the dashes, and as a key of the file."""
    return name.replace("_", "-")


class Table(Generic[T]):
    """The settings of a program: field `x_y` is flag `--x-y`, environment `PROGRAM_X_Y`, file key `x-y`.

    Args:
        kind: a dataclass whose fields are made with `setting`.
        program: its name, with which its environment variables begin.
        others: further variables of the program, which are no settings.
        groups: title in the help to the fields below it; those of none are below "settings".
    """

    def __init__(
        self,
        kind: type[T],
        program: str,
        others: Collection[str] = (),
        groups: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._title = {name: title for title, names in (groups or {}).items() for name in names}
        self._kind, self._prefix = kind, f"{program.upper()}_"
        self._fields = fields(kind)  # type: ignore[arg-type] # a dataclass
        self._config = f"{self._prefix}CONFIG"
        self._known = {self.variable(one.name) for one in self._fields} | {self._config, *others}

    def variable(self, name: str) -> str:
        """The environment variable of a field."""
        return f"{self._prefix}{name.upper()}"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Give `parser` one flag a setting, and `--config`."""
        titles = dict.fromkeys(
            [*self._title.values(), *(self._title.get(one.name, "settings") for one in self._fields)]
        )
        groups = {title: parser.add_argument_group(title) for title in titles}
        for one in self._fields:
            meta = one.metadata
            env = " or ".join(name for name in (self.variable(one.name), meta["env"]) if name)
            is_switch = meta["parse"] is values.is_on
            groups[self._title.get(one.name, "settings")].add_argument(
                f"--{setting_key(one.name)}",
                dest=one.name,
                metavar=meta["metavar"] or one.name.rpartition("_")[2].upper(),
                nargs="?" if is_switch else None,
                const="true" if is_switch else None,
                help=f"{meta['help']}{_default(one.default)} [{env}]",
            )
        parser.add_argument("--config", metavar="FILE", help=f"TOML file with settings by flag name [{self._config}]")

    def load(self, flags: Mapping[str, str | None], env: Mapping[str, str]) -> T:
        """Settings from parsed flags (by field name, and ``config``), environment and file.

        Raises:
            ConfigError: names the setting, where it came from and what is wrong with it.
        """
        config = flags.get("config") or env.get(self._config)
        file = _read(Path(config)) if config else {}
        if unknown := sorted(file.keys() - {setting_key(one.name) for one in self._fields}):
            raise ConfigError(f"{config}: unknown setting {', '.join(unknown)}")
        ours = (name for name in env if name.startswith(self._prefix) and not _OF_A_SERVICE.search(name))
        if unknown := sorted(name for name in ours if name not in self._known):
            raise ConfigError(f"environment: unknown setting {', '.join(unknown)}")
        chosen = {}
        for one in self._fields:
            sources = [
                (f"--{setting_key(one.name)}", flags.get(one.name)),
                (self.variable(one.name), env.get(self.variable(one.name))),
                (one.metadata["env"], env.get(one.metadata["env"])),
                (f"{config}: {setting_key(one.name)}", file.get(setting_key(one.name))),
            ]
            source, text = next(((s, t) for s, t in sources if t is not None), ("", None))
            if text is not None:
                try:
                    chosen[one.name] = one.metadata["parse"](text)
                except ValueError as err:
                    raise ConfigError(f"{source}: {err}") from err
        return self._kind(**chosen)


def _default(value: object) -> str:
    if not value:
        return ""
    shown = "true" if value is True else ":".join(map(str, value)) if isinstance(value, tuple) else value
    return f" (default: {shown})"


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as err:
        raise ConfigError(f"cannot read {path}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path} is not TOML: it is not text in UTF-8") from err
    except RecursionError as err:
        raise ConfigError(f"{path} is not TOML: it is nested too deeply") from err
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"{path} is not TOML: {err}") from err
    for key, value in data.items():
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigError(f"{path}: {key} is neither a text nor a number nor true or false")
    return {key: str(value) for key, value in data.items()}
