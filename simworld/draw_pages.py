"""Worlds whose API server gives lists in pages of a few objects.

A real one has hundreds in a page, and its clusters have thousands of pods. Worlds are smaller, and so are their pages.
"""

import random
from dataclasses import replace

from simworld.scenario import Scenario

PAGE_SEEDS = 6_000_000
"""Seeds from this one on draw this. The worlds of those below stay as they are."""
PAGES = (1, 2, 5)
"""Objects in a page."""


def with_small_pages(scenario: Scenario) -> Scenario:
    """The scenario, in half of the worlds of later seeds with small pages; else as it is."""
    chance = random.Random(f"{scenario.seed}/pages")
    if scenario.seed < PAGE_SEEDS or chance.random() < 0.5:
        return scenario
    return replace(scenario, page=chance.choice(PAGES))
