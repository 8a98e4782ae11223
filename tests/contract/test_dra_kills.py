"""A short part of `make claim-kills`: the agent is killed at random moments."""

from tests.contract.claim_kills import run


def test_nothing_is_lost_or_given_twice_when_the_agent_is_killed(nothing_left: None) -> None:
    """How long pods wait is for the long run to see: kubelet waits less here, and the machine may be busy."""
    killed = run(7, 4, registry=0.1, registration=0.1, back_off=0.5, reconcile=0.5)
    assert killed.figures.kills == 4
