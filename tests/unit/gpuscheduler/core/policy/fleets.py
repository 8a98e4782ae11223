"""Random fleets, demands and mixes for tests of the policies, with a reference for what fits."""

import numpy as np
from hypothesis import strategies as st

from gpuscheduler.core.policy.fleet import MOST_GPUS, Demand, Fleet
from gpuscheduler.core.policy.mix import Mix

FRACTIONS = (0.05, 0.1, 0.19, 0.25, 1 / 3, 0.5, 0.81, 1.0)
CORES = (0.0, 2.0, 3.152, 11.4, 64.0)
MODELS = 3

fractions = st.sampled_from(FRACTIONS)
models = st.none() | st.frozensets(st.integers(0, MODELS - 1), min_size=1)


@st.composite
def nodes(draw):
    """One node as a tuple: free parts of its GPUs, free cores, model. Free parts are what pods of FRACTIONS leave."""
    gpus = draw(st.lists(st.lists(fractions, max_size=2), min_size=1, max_size=8))
    free = [max(1.0 - sum(used), 0.0) for used in gpus]
    return free, draw(st.sampled_from((-4.0, *CORES, 96.0))), draw(st.integers(0, MODELS - 1))


@st.composite
def demands(draw):
    gpus = draw(st.sampled_from((1, 1, 1, 2, 4, 8)))
    fraction = draw(fractions) if gpus < 8 else 1.0
    return Demand(gpus, fraction, draw(st.sampled_from(CORES)), draw(models))


fleets = st.lists(nodes(), min_size=1, max_size=5).map(lambda made: fleet(*made))


@st.composite
def mixes(draw):
    """A mix that learned from some pods, and published what it learned."""
    prior = draw(st.dictionaries(demands(), st.floats(0.1, 1.0), min_size=1, max_size=8))
    return Mix(prior)


def fleet(*made):
    """A fleet of nodes, each the free parts of its GPUs, its free cores and its model."""
    free = np.zeros((len(made), MOST_GPUS))
    for row, (parts, _, _) in enumerate(made):
        free[row, : len(parts)] = parts
    return Fleet(
        free,
        np.array([len(parts) for parts, _, _ in made]),
        np.array([cores for _, cores, _ in made]),
        np.full(len(made), 96.0),
        np.array([model for _, _, model in made]),
    )


def all_rows(some):
    return np.arange(len(some.gpus))


def fitting(some, demand, row):
    """Positions of the GPUs of a row that have room for the demand."""
    if demand.models is not None and some.model[row] not in demand.models:
        return set()
    return {gpu for gpu in range(some.gpus[row]) if some.free[row, gpu] >= demand.fraction - 1e-9}
