"""The settings of a program as one table: a flag beats the environment, then come the file and the default."""

import argparse
import dataclasses
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuagent.settings import values

T = TypeVar("T")

OTHER_SETTINGS = "settings"
"""Title of the help for fields that are in no group."""
_Group = argparse._ArgumentGroup  # noqa: SLF001 (argparse has no other name for it)
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
    metadata = {"parse": parse, "help": text, "metavar": metavar, "env": env}
    return dataclasses.field(default=default, metadata=metadata)


def setting_key(name: str) -> str:
    """The name of a field as a flag, without the dashes, and as a key of the file."""
    return name.replace("_", "-")


class Table(Generic[T]):
    """The settings of a program: field `x_y` is flag `--x-y`, environment `PROGRAM_X_Y`, file key `x-y`.

    Args:
        kind: a dataclass whose fields are made with `setting`.
        program: its name, with which its environment variables begin.
        others: further variables of the program, which are not settings.
        groups: title in the help to the fields below it; those of none are below "settings".
    """

    def __init__(
        self,
        kind: type[T],
        program: str,
        others: Collection[str] = (),
        groups: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._kind = kind
        self._prefix = f"{program.upper()}_"
        self._fields: tuple[Field[Any], ...] = dataclasses.fields(kind)  # type: ignore[arg-type] # a dataclass
        self._config = f"{self._prefix}CONFIG"
        self._titles: dict[str, str] = {}
        for title, names in (groups or {}).items():
            self._titles.update(dict.fromkeys(names, title))
        variables = {self.variable(field.name) for field in self._fields}
        self._variables = {*variables, self._config, *others}

    def variable(self, name: str) -> str:
        """The environment variable of a field."""
        return f"{self._prefix}{name.upper()}"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Give `parser` one flag a setting, and `--config`."""
        # The help has the groups in this order, and none that is empty.
        titles = dict.fromkeys([*self._titles.values(), OTHER_SETTINGS])
        groups = {title: parser.add_argument_group(title) for title in titles}
        for field in self._fields:
            title = self._titles.get(field.name, OTHER_SETTINGS)
            self._add_flag(groups[title], field)
        parser.add_argument("--config", metavar="FILE", help=f"TOML file with settings by flag name [{self._config}]")

    def _add_flag(self, group: _Group, field: Field[Any]) -> None:
        meta = field.metadata
        env = self.variable(field.name)
        if meta["env"]:
            env = f"{env} or {meta['env']}"
        _, _, last_word = field.name.rpartition("_")
        # A switch may stand without a value.
        is_switch = meta["parse"] is values.is_on
        group.add_argument(
            f"--{setting_key(field.name)}",
            dest=field.name,
            metavar=meta["metavar"] or last_word.upper(),
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            help=f"{meta['help']}{_default(field.default)} [{env}]",
        )

    def load(self, flags: Mapping[str, str | None], env: Mapping[str, str]) -> T:
        """Settings from parsed flags (by field name, and ``config``), environment and file.

        Raises:
            ConfigError: names the setting, where it came from and what is wrong with it.
        """
        config = flags.get("config") or env.get(self._config)
        file = _read(Path(config)) if config else {}
        _check_known(f"{config}", file.keys() - {setting_key(field.name) for field in self._fields})
        _check_known("environment", self._unknown_variables(env))
        chosen = {}
        for field in self._fields:
            key = setting_key(field.name)
            variable = self.variable(field.name)
            second_variable = field.metadata["env"]
            # The first that is set counts.
            sources = {
                f"--{key}": flags.get(field.name),
                variable: env.get(variable),
                second_variable: env.get(second_variable),
                f"{config}: {key}": file.get(key),
            }
            for source, text in sources.items():
                if text is not None:
                    chosen[field.name] = _parsed(field, text, source)
                    break
        return self._kind(**chosen)

    def _unknown_variables(self, env: Mapping[str, str]) -> set[str]:
        """Variables that look like settings of the program, such as one that is misspelled."""
        unknown = set()
        for name in env.keys() - self._variables:
            if name.startswith(self._prefix) and not _OF_A_SERVICE.search(name):
                unknown.add(name)
        return unknown


def _check_known(source: str, unknown: Collection[str]) -> None:
    if unknown:
        raise ConfigError(f"{source}: unknown setting {', '.join(sorted(unknown))}")


def _parsed(field: Field[Any], text: str, source: str) -> object:
    try:
        return field.metadata["parse"](text)
    except ValueError as err:
        raise ConfigError(f"{source}: {err}") from err


def _default(value: object) -> str:
    if not value:
        return ""
    if value is True:
        return " (default: true)"
    if isinstance(value, tuple):
        value = ":".join(map(str, value))
    return f" (default: {value})"


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
    # A list or a table would be a text that no parser expects.
    for key, value in data.items():
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigError(f"{path}: {key} is neither a text nor a number nor true or false")
    return {key: str(value) for key, value in data.items()}
