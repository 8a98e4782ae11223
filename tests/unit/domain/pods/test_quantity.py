"""Kubernetes quantities mean to the agent what they mean to kubelet."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from gpuagent.domain.pods.quantity import MOST, amount
from tests.unit.domain import hostile

# What resource.ParseQuantity(text).Value() of k8s.io/apimachinery v0.36.3 answers. A real API server stores each of
# these for an extended resource, some in another spelling.
STORED = {
    0: "0 -0 0e5 0Ki",
    1: "1 1000000u",
    2: "2000m",
    3: "3000000000n",
    5: "+5 5. 5.0 5e0 5E0 5e+0 5e-0 50e-1 0.5e1 .5e1",
    7: "007",
    500: ".5k",
    1000: "1k 1e3 1E+03",
    1500: "1.5k 1.500k",
    2 * 10**6: "2M",
    3 * 10**9: "3G",
    4 * 10**12: "4T",
    5 * 10**15: "5P",
    5 * 10**18: "5E 5e18",
    512: "0.5Ki",
    1536: "1.5Ki",
    102400: "100Ki",
    3 * 2**20: "3Mi",
    2 * 2**30: "2Gi",
    2**40: "1Ti",
    2**50: "1Pi",
    7 * 2**60: "7Ei",
    MOST: f"{MOST} 8Ei 99999999999999999999Ei",
}
# Beyond 64 bits decimal amounts vanish or keep their low bits, and exponents keep 32.
OVERFLOWING = {
    0: f"10E 9.3E 1e19 1e30 1e64 36893488147419103232e5 {2**64}",
    1: "1e4294967296",
    4: f"{2**64 + 4}",
    5: "5e-4294967296",
    7000: "7e4294967299",
    1600000000: "28823037615171176G",
}
# The API server refuses these for an extended resource; kubelet would round them up.
FRACTIONS = {1: "500m .5 0.1m 1n 1e-30", 2: "1.5 1.0000000000000000000000000000001"}
NO_QUANTITIES = [
    *["", " ", "1 ", " 1", "٣", "5٣", "²"],
    *"- + . k Ki e e5 None True Inf NaN 1_000 1K 1ki 1mi 1Kib 1Zi 1h 5i 5e 5e+ 5e1.5 5ee5 5eE5 5e5k 5+5 1,5".split(),
    *"1.2.3 --5 +-5 0x5 1e9223372036854775808 1e-9223372036854775809 -1 -1e3 -1Ki -1m".split(),
    str(2**63),  # kubelet takes it for a negative amount
]


@pytest.mark.parametrize(
    ("text", "units"),
    [
        (text, units)
        for group in (STORED, OVERFLOWING, FRACTIONS)
        for units, texts in group.items()
        for text in texts.split()
    ],
)
def test_every_spelling_has_the_value_that_kubelet_takes(text, units):
    assert amount(text) == units


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_other_texts_and_negative_amounts_are_not_read(text):
    assert amount(text) is None


def numbers(digits: int):
    ints = st.integers(0, 10**digits - 1).map(str)
    zeros = st.sampled_from(["", "0", "000"])
    parts = st.none() | st.text("0123456789", max_size=digits)
    return st.builds(lambda z, i, p: z + i + ("" if p is None else f".{p}"), zeros, ints, parts)


exponents = st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 30))
suffixes = st.sampled_from(["", *"numkMGTPE", *(f"{letter}i" for letter in "KMGTPE")]) | exponents
signs = st.sampled_from(["", "+"])


@given(st.builds("{}{}{}".format, signs, numbers(9), suffixes))
def test_the_whole_grammar_agrees_with_another_reader_where_64_bits_are_enough(text):
    exact = parse_quantity(text)
    if exact <= MOST:
        assert amount(text) == math.ceil(exact)


@given(hostile.words | st.text(max_size=14) | st.text("0123456789eEinumkKMGTP.+-", max_size=24))
@example("9" * 100_000)
@example("0" * 100_000 + "5")
@example("0" * 100_000 + "x")
@example("." + "9" * 100_000 + "Ei")
@example("5e" + "0" * 100_000 + "1")
@example("1e999999999")
@example("1e-999999999")
@example("1234567890123456789e2147483647")
@example("1234567890123456789e-2147483648")
def test_any_text_is_an_amount_of_64_bits_or_none_at_all_and_no_exponent_makes_it_work_long(text):
    units = amount(text)
    assert units is None or 0 <= units <= MOST
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        assert units == int(text)
