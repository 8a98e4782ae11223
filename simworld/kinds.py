"""The kinds of worlds, by the name of the option that plays them."""

from collections.abc import Callable, Mapping

from simworld.claim_scenario import draw_small_world, draw_world
from simworld.scenario import Scenario
from simworld.staged import draw_staged_world
from simworld.staged_admissions import draw_staged_admissions
from simworld.staged_gangs import draw_staged_gangs

Draw = Callable[[int], Scenario]
"""Draws the world of a seed."""

LARGE: Draw = draw_world
"""What is played without an option."""
QUICK: Mapping[str, Draw] = {
    "small": draw_small_world,
    "staged": draw_staged_world,
    "admissions": draw_staged_admissions,
    "gangs": draw_staged_gangs,
}
"""Kinds of which many worlds fit into the time of a large one, so that faults are looked for in them."""
