"""What the watches show is read, whatever is in it."""

import pytest

from gpuscheduler.followers import UNHEALTHY, ConfigMapFollower


class Nodes:
    """Keeps what it is told."""

    def __init__(self):
        self.minors = {}

    def unhealthy(self, name, minors):
        self.minors[name] = minors


@pytest.mark.parametrize(
    ("text", "minors"),
    [
        ("1, 2", {1, 2}),
        ("007", {7}),
        ("9" * 5000, set()),
        (f"3,{'9' * 5000},4", {3, 4}),
        ("\u0663,\u00b2,-1,+1,1_0,0x1,,x", set()),
        (None, set()),
        (7, set()),
        ([1], set()),
    ],
)
def test_numbers_of_unhealthy_gpus_that_are_none_are_passed_over(text, minors):
    nodes = Nodes()
    ConfigMapFollower(nodes).seen({"metadata": {"name": f"{UNHEALTHY}n1"}, "data": {"gpus": text}})
    assert nodes.minors == {"n1": minors}
