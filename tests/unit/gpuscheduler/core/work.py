"""Counts the work of a call, so that tests of speed need no quiet machine."""

import sys


def calls_of(function):
    """How many functions `function` calls, those of C included, and what it returns."""
    count = 0

    def counted(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    former = sys.getprofile()
    sys.setprofile(counted)
    try:
        returned = function()
    finally:
        sys.setprofile(former)
    return count, returned
