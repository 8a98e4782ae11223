"""What somebody may write into the annotations of schedulers.

Of few choices each: choosing takes most of the time of a hundred thousand inputs.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from tests.unit.domain.builders import uuid

HUGE = "9" * 5000  # more digits than int() takes
UUIDS = [uuid(n) for n in range(4)]
INDEXES = [
    *"012345",
    "00",
    "01",
    "-1",
    "+1",
    " 1",
    "1.0",
    "1e3",
    "²",
    "٣",
    "",
    "10000",
    HUGE,
    "GPU-x",
    "\\u0031",
    *UUIDS,
]
AMOUNTS = [
    *(
        "0",
        "1",
        "4",
        "30",
        "-1",
        "-0",
        "007",
        "4.0",
        "4e0",
        "1e3",
        "1e999",
        "true",
        "null",
        "NaN",
        "-Infinity",
        '"4"',
        "٣",
    ),
    *(str(an.MOST_UNITS), str(an.MOST_UNITS + 1), str(2**64), HUGE, "[4]", "{}", '{"1":4}', "", "4,"),
]
WORDS = ["true", "false", "True", "4GiB", "0,1", "1767225600000000000", str(10**19), str(10**20), "\x00", "\ud800"]
JSON_PARTS = {
    "A": '{"0":{"1":4}}',
    "B": '"0":',
    "C": '{"1":',
    "D": "NaN",
    "E": "1e3",
    "F": "true",
    "G": "null",
    "H": "²",
    "I": HUGE,
    "J": "[" * 3000,
    "K": '{"0":' * 3000,
    "L": "\\ud800",
    "M": UUIDS[0],
    "N": "-Infinity",
}


def _table(rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """A V2 annotation word by word: a key may come twice, and no amount need be a number."""
    inner = ((name, ",".join(f'"{gpu}":{amount}' for gpu, amount in gpus)) for name, gpus in rows)
    return "{" + ",".join(f'"{name}":{{{gpus}}}' for name, gpus in inner) + "}"


_gpus = st.lists(st.tuples(st.sampled_from(INDEXES), st.sampled_from(AMOUNTS)), max_size=3)
tables = st.lists(st.tuples(st.sampled_from(INDEXES), _gpus), max_size=3).map(_table)
json_like = st.text('{}[]":, 014' + "".join(JSON_PARTS), max_size=24).map(
    lambda text: text.translate(str.maketrans(JSON_PARTS))
)
words = st.sampled_from([*INDEXES, *AMOUNTS, *WORDS])
names = st.lists(st.sampled_from(INDEXES), max_size=4).map(",".join)
no_texts = st.sampled_from([None, True, 4, -1, 2**70, 4.0, float("nan"), [], [{"0": 1}], {}, {"0": {"1": 4}}])
"""What the API server does not let through, and a broken one might."""
anything = tables | json_like | words | names | st.text() | no_texts
