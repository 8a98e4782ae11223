"""Command lines that help: the whole help on a bare call, and the nearest name for one that is not known."""

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from textwrap import fill
from typing import Any, NoReturn

from gpuagent import __version__
from gpuagent.system.likeness import did_you_mean

SHELLS = ("bash", "zsh", "fish")
_UNKNOWN = re.compile(r"unrecognized arguments: ([^\s=]+)")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.+)\)")
_WIDTH = 79


class CommandLine(argparse.ArgumentParser):
    """A parser whose errors name what was meant. Flags cannot be abbreviated: a later flag could change what they mean.

    Args:
        description: what the program or command does.
        epilog: what to know beside the flags.
        examples: command lines, shown at the end of the help.
        given: as of ArgumentParser.
    """

    def __init__(
        self,
        *,
        description: str = "",
        epilog: str = "",
        examples: Sequence[str] = (),
        **given: Any,  # noqa: ANN401
    ) -> None:
        self._commands: argparse._SubParsersAction[CommandLine] | None = None
        after_flags = []
        if epilog:
            after_flags.append(_wrapped(epilog))
        if examples:
            lines = [f"  {example}" for example in examples]
            after_flags.append("\n".join(["examples:", *lines]))
        super().__init__(
            description=_wrapped(description),
            epilog="\n\n".join(after_flags),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **given,
        )

    def add_commands(self) -> "argparse._SubParsersAction[CommandLine]":
        """Take commands; a call without one gets the help."""
        self._commands = self.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandLine)
        return self._commands

    @property
    def commands(self) -> Collection[str]:
        """Names of the commands."""
        return self._commands.choices if self._commands else ()

    def add_version(self, program: str) -> None:
        """Take --version and --completion of a program, named as its file is."""
        self.add_argument("--version", action="version", version=f"{program} {__version__}")
        self.add_argument(
            "--completion",
            action=_Completion,
            choices=SHELLS,
            metavar="SHELL",
            help="print the completion for bash, zsh or fish",
            program=program,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """As of ArgumentParser."""
        given = sys.argv[1:] if args is None else args
        if self._commands and not given:
            self.print_help(sys.stderr)
            raise SystemExit(2)
        return super().parse_args(given, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """As of ArgumentParser, but a flag that a command does not have is an error of that command."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the mistake, what was meant, and where help is."""
        # argparse says what is wrong, and not what was meant.
        unknown = _UNKNOWN.search(message)
        choice = _CHOICE.search(message)
        if unknown:
            message += did_you_mean(unknown[1], self._option_string_actions)
        elif choice:
            choices = re.findall(r"[\w.-]+", choice[2])
            message += did_you_mean(choice[1], choices)
        self.exit(2, f"{self.prog}: {message}\nSee: {self.prog} --help\n")


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH, break_on_hyphens=False)


class _Completion(argparse.Action):
    """Print the script and end."""

    def __init__(self, *, program: str, **given: Any) -> None:  # noqa: ANN401 (as of Action)
        super().__init__(**given)
        self._program = program

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:  # noqa: ANN401 (as of Action)
        import shtab  # noqa: PLC0415 (rarely needed, and memory for as long as the agent runs)

        parser.prog = self._program
        print(shtab.complete(parser, str(given[1])))
        parser.exit()
