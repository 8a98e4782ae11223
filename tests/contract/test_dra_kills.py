"""A short part of `make claim-kills`: the agent is killed at random moments."""

from collections.abc import Callable

from tests.contract.claim_kills import run
from tests.contract.claim_node import ClaimNode
from tests.contract.harness import wait_for


def test_nothing_is_lost_or_given_twice_when_the_agent_is_killed(nothing_left: None) -> None:
    """How long pods wait is for the long run to see: kubelet waits less here, and the machine may be busy."""
    killed = run(7, 4, registry=0.1, registration=0.1, back_off=0.5, reconcile=0.5)
    assert killed.figures.kills == 4


def test_containers_of_a_pod_that_was_forced_away_while_kubelet_was_away_end_before_its_claim(
    claim_node: Callable[..., ClaimNode],
) -> None:
    """The stand-in's housekeeping is that of kubelet. Without it, the witness would see a GPU that is given twice."""
    one = claim_node(reconcile=600)
    one.run()
    one.registered()
    one.published()
    one.run_pod("pod", memory="8Gi")
    uid = one.pod("pod")["metadata"]["uid"]
    one.kubelet.stop()
    one.delete("pod", grace_s=0)
    one.kubelet.start()
    wait_for(lambda: one.kubelet.claims.container(uid, "main") is None)
    assert one.files() == (1, 1)
