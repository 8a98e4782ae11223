"""What people copy out of the documents is right: commands parse, YAML and TOML load, the chart has the values that are set."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
import yaml

from gpuagent import cli
from gpuagent.settings.settings import Settings
from gpuisolation import cli as installer
from gpuscheduler import cli as scheduler
from tests.unit.docs.test_docs import PAGES, ROOT, name_of

RELEASE = "gpuagent"
CHART = ROOT / "manifests/helm" / RELEASE


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Bodies of the page's fenced blocks of these languages, indented ones too."""
    for indent, language, body in re.findall(
        r"^( *)```(\w+)\n(.*?)^\1```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        if language in languages:
            yield "\n".join(line.removeprefix(indent) for line in body.splitlines())


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command of shell blocks; here-documents are cut out, pipes and lists cut up."""
    text = "\n".join(
        [
            *blocks(page, "sh"),
            *(line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")),
        ]
    )
    text = re.sub(r"<<'(\w+)'\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        for word in lexer:
            if set(word) <= set("|&;<>"):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def after(words: list[str], program: str) -> list[str] | None:
    """The arguments, where the command is this program, also as a path or behind `kubectl exec … --`."""
    if "--" in words and words[:1] == ["kubectl"]:
        words = words[words.index("--") + 1 :]
    return words[1:] if words and words[0].rpartition("/")[2] == program else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shell_blocks_are_shell(page):
    for block in blocks(page, "sh"):
        found = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert found.returncode == 0, (block, found.stderr)


def understood(parse, words: list[str]) -> str:
    """What a command line's parser says against it."""
    output = StringIO()
    try:
        with redirect_stderr(output):
            parse(words)
    except SystemExit as end:
        return output.getvalue() if end.code else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_our_own_commands_have_these_flags(page):
    for words in commands(page):
        for program, parser in (
            ("gpuagent", cli.make_parser()),
            ("gpu-isolation-installer", installer.make_parser()),
            ("gpuscheduler", scheduler.make_parser()),
        ):
            arguments = after(words, program)
            if arguments is not None:
                assert understood(parser.parse_args, arguments) == "", words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_yaml_and_toml_load(page):
    for block in blocks(page, "yaml"):
        assert list(yaml.safe_load_all(block))
    for block in blocks(page, "toml"):
        assert tomllib.loads(block)


def values_set(page: Path) -> Iterator[list[str]]:
    """Keys of `--set` of commands that install or upgrade the chart."""
    for words in commands(page):
        if after(words, "helm") and any("gpuagent" in word for word in words):
            for flag, value in zip(words, words[1:], strict=False):
                if flag in {"--set", "--set-string", "--set-json"}:
                    yield re.split(r"(?<!\\)\.", value.partition("=")[0])


@pytest.mark.skipif(not CHART.exists(), reason="the chart is not in this tree")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_chart_has_the_values_that_are_set(page):
    chart = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    settings = {name.replace("_", "-") for name in Settings.__dataclass_fields__}
    for first, *rest in values_set(page):
        assert first in chart, first
        if first == "settings":
            assert rest[0] in settings, rest
        elif first != "nodeSelector":
            here = chart[first]
            for key in rest:
                assert key in here, (first, *rest)
                here = here[key]


def helm_commands(page: Path) -> Iterator[list[str]]:
    """Words after `helm` of each command that concerns our own release: of the chart, or on no chart of others."""
    for words in commands(page):
        arguments = after(words, "helm")
        if arguments and (f"manifests/helm/{RELEASE}" in arguments or not any("/" in word for word in arguments[1:])):
            yield arguments


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_helm_commands_name_one_release_and_take_over_values_in_one_way(page):
    """An upgrade under another name would be a second release, and `--reuse-values` hides a newer chart's defaults."""
    for verb, name, *rest in helm_commands(page):
        assert name == RELEASE, (verb, name)
        assert rest[rest.index("--namespace") + 1] == "kube-system", (verb, rest)
        assert "--reuse-values" not in rest
        assert ("--reset-then-reuse-values" in rest) == (verb == "upgrade"), (verb, rest)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_installation_names_an_image(page):
    """The chart refuses one without."""
    for words in helm_commands(page):
        if words[0] in {"install", "template"} and any(str(CHART.name) in word for word in words):
            assert any("image.repository=" in word or word in {"-f", "--values"} for word in words), words


def test_the_documents_install_upgrade_and_roll_back():
    assert {words[0] for page in PAGES for words in helm_commands(page)} >= {"install", "upgrade", "rollback"}


TRANSLATIONS = {
    "README.zh-CN.md": "README.md",
    "docs/zh/modes.md": "docs/modes.md",
    "docs/zh/quick-start.md": "docs/run-a-workload.md",
    "docs/zh/install.md": "docs/install.md",
}
OF_ALL_TABLES = ("README.zh-CN.md", "docs/zh/modes.md", "docs/zh/quick-start.md")
OF_A_WHOLE_PAGE = ("README.zh-CN.md", "docs/zh/modes.md")


def names_and_numbers(page: Path) -> tuple[set[str], set[str]]:
    """What stands between backticks in the text of a page, and its numbers. They need no translation."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = set(re.findall(r"`([^`]+)`", text))
    words = re.sub(r"`[^`]+`|\]\([^)]*\)", "", text)
    return names, set(re.findall(r"\d+(?:\.\d+)*", words))


def rows_of_tables(page: str) -> list[int]:
    """The number of lines of each table of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [len(lines.splitlines()) for lines in re.findall(r"^(?:\|.*\n)+", text, re.MULTILINE)]


@pytest.mark.parametrize("chinese", OF_ALL_TABLES)
def test_the_tables_of_a_chinese_page_have_the_rows_of_the_english_one(chinese):
    assert rows_of_tables(chinese) == rows_of_tables(TRANSLATIONS[chinese])


def test_every_chinese_page_is_held_against_an_english_one():
    pages = {"README.zh-CN.md", *(str(page.relative_to(ROOT)) for page in (ROOT / "docs/zh").glob("*.md"))}
    assert pages == TRANSLATIONS.keys()


@pytest.mark.parametrize("chinese", TRANSLATIONS)
def test_the_chinese_pages_have_the_commands_and_values_of_the_english_ones(chinese):
    """Of a part of a page, all that the translation has is in the page, and commands are in the same order."""
    translated = list(blocks(ROOT / chinese, "sh", "text"))
    original = list(blocks(ROOT / TRANSLATIONS[chinese], "sh", "text"))
    assert [block for block in original if block in translated] == translated
    names, numbers = names_and_numbers(ROOT / chinese)
    all_names, all_numbers = names_and_numbers(ROOT / TRANSLATIONS[chinese])
    assert names <= all_names
    assert numbers <= all_numbers
    if chinese in OF_A_WHOLE_PAGE:
        assert (translated, names, numbers) == (original, all_names, all_numbers)
