"""The linter of prose: what it reads, where sentences end, and what it finds in them."""

import pytest

from prose.__main__ import main, problems
from prose.sentences import findings, sentences, style
from prose.sources import markdown, remarks, strings, yaml_texts

LONG = "word " * style().longest_sentence


def texts(blocks):
    return [(block.line, block.text) for block in blocks]


def test_markdown_is_read_without_its_code():
    page = (
        "# Title\n\ntext of\ntwo lines\n\n```sh\nkubectl get pods\n```\n\n- item\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    assert texts(markdown(page)) == [
        *((1, "Title"), (3, "text of\ntwo lines"), (10, "item")),
        *((12, "a"), (12, "b"), (14, "c"), (14, "d")),
    ]


def test_strings_that_read_as_prose_are_read_and_docstrings_are_not():
    source = '"""A docstring with many words."""\nx = "a-key"\nraise E(f"GPU {n} is lost: "\n        "reset the GPU")\n'
    assert texts(strings(source)) == [(3, "GPU `x` is lost: reset the GPU")]


def test_docstrings_and_comments_are_read_on_request():
    source = '"""A docstring with many words."""\n\n# A comment of\n# two lines.\nx = 1  # short\n'
    assert texts(remarks(source)) == [(1, "A docstring with many words."), (3, "A comment of\ntwo lines.")]


def test_comments_and_texts_of_yaml_are_read():
    source = (
        "# A comment of\n# two lines.\nalert: X\nexpr: a + b\ndescription: >-\n  The node {{ $labels.node }} is lost.\n"
    )
    assert texts(yaml_texts(source)) == [(1, "A comment of\ntwo lines."), (5, "The node `x` is lost.")]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two.", 2),
        ("See [a.b](c.md). [Next](d.md) follows.", 2),
        ("It needs 3.5 GiB, e.g. Python. `code` follows.", 2),
        ("**Bold.** Then text.", 2),
        ("Run `a. B` now.", 1),
    ],
)
def test_where_sentences_end(text, count):
    found = list(sentences(text))
    assert len(found) == count
    assert " ".join(found) == text


def test_a_long_sentence_is_found_and_code_is_one_word():
    assert list(findings(f"{LONG}end.")) == ["26 words: split the sentence"]
    assert list(findings(f"{LONG.removesuffix('word ')}`one two three`.")) == []


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("The agent knows the pod.", "'knows'"),
        ("Whoever asks gets a GPU.", "'Whoever asks'"),
        ("The mode is stored by the agent.", "'is stored by the agent'"),
        ("The node offers GPUs.", "'offers'"),
        ("Kubelet offers device ids.", ""),
        ("`knows` is code.", ""),
    ],
)
def test_words_with_another_word_are_found(sentence, found):
    assert [line.partition(":")[0] for line in findings(sentence)] == ([found] if found else [])


def test_a_finding_names_its_place(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nThe agent\nknows it.\n", encoding="utf-8")
    (line,) = problems(page)
    assert line.startswith(f"{page}:3: 'knows': ")
    assert line.endswith("\n    The agent knows it.")
    assert main([str(page)]) == 1
    page.write_text("# Title\n", encoding="utf-8")
    assert main([str(page)]) == 0
    assert capsys.readouterr().out.endswith("0 findings\n")
