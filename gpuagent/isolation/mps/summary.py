"""What the states of the GPUs' control daemons mean for the node."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.isolation.mps.daemon_state import NOT_LOOKED, MpsState, Phase

_MOST_NAMED = 2
"""GPUs whose own problem is in the node's problem. Their daemons often have the same one."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The state of MPS on the node.

    Attributes:
        problem: why MPS works on none of its GPUs; None while it works on some.
        standby: `problem` only says that no daemon is needed, or that none was looked for yet.
        left_out: UUID of each GPU on which it does not work, although it works on others, to why.
    """

    problem: str | None = None
    standby: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)


def summary(states: Mapping[Gpu, MpsState], *, worked: bool) -> Summary:
    """Sum up the daemons of the node's GPUs.

    Args:
        states: of the GPUs that can be shared through MPS; not empty.
        worked: MPS was reported to work before.
    """
    phases = {state.phase for state in states.values()}
    # The first report is for all GPUs: the amounts of the node do not rise one by one.
    if Phase.NOT_LOOKED in phases and not worked:
        return Summary(NOT_LOOKED, standby=True)
    problems = {gpu: state.problem for gpu, state in states.items() if state.problem}
    if len(problems) < len(states):
        return Summary(left_out={gpu.uuid: text for gpu, text in problems.items()})
    is_standby = all(state.on_standby for state in states.values())
    return Summary(_in_words(problems), is_standby)


def _in_words(problems: Mapping[Gpu, str]) -> str:
    """The problems of all GPUs as one text."""
    texts = list(dict.fromkeys(problems.values()))
    if len(texts) == 1:
        return texts[0]
    named = [f"GPU {gpu.index}: {text}" for gpu, text in problems.items()]
    more = len(named) - _MOST_NAMED
    if more > 0:
        named[_MOST_NAMED:] = [f"{more} more GPUs have problems of this kind"]
    return "; ".join(named)
