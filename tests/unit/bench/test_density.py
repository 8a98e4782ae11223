"""What the table of density counts in a file."""

from bench.density import measure

TEXT = '''
"""Documents, and computes nothing."""

# Why this is so.
a, b = 1, 2
one = [x for row in [[1]] for x in [y for y in row]]  # noqa: C416


class Wide:
    """A class."""

    kept: int = 0

    def fill(self) -> None:
        self.kept = 1
        self.other = 2
'''


def test_what_is_counted_in_a_file(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(TEXT)
    density = measure([file])
    assert (density.tuple_assignments, density.nested, density.comments) == (1, 1, 1)
    assert (density.names, density.vague) == (7, 1)
    assert density.lines == 7
    assert (density.long_classes, density.wide_classes) == ([], [])


def test_lines_and_docstrings_change_nothing_but_the_lines(tmp_path):
    dense, roomy = tmp_path / "dense.py", tmp_path / "roomy.py"
    dense.write_text("value = f(a, b)\n")
    roomy.write_text('"""Text."""\nvalue = f(\n    a,\n    b,\n)\n')
    assert measure([dense]).nodes == measure([roomy]).nodes
    assert measure([roomy]).lines == 3
