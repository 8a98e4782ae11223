"""The scheduler's walk: twenty nodes, pods of all kinds, a job, a pod that waits, fragmentation, and preemption."""

import argparse
import sys
import textwrap
import time

from demo.scheduled_cluster import ScheduledCluster, twenty_nodes
from gpuagent.system.output import exit_with
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.strand import Strand

PAUSE_S = 4.0


def main() -> int:
    """Walk once. The exit code: 1 if a step did not happen."""
    parser = argparse.ArgumentParser(prog="make demo-scheduler", description=__doc__)
    parser.add_argument("--once", action="store_true", help="do not pause between the steps")
    options = parser.parse_args()
    try:
        walk(0.0 if options.once else PAUSE_S)
    except RuntimeError as err:
        print(f"demo: {err}", file=sys.stderr)
        return 1
    return 0


def walk(pause_s: float) -> None:
    """Every step says what happens, does it, and shows which pod is on which GPU."""
    mix = Mix()
    cluster = ScheduledCluster(Strand(mix), mix, twenty_nodes())
    note("Twenty simulated nodes. The nodes, the pods and kube-scheduler are stand-ins; the scheduler's core is real.")
    note("A bar is a GPU, a letter a pod, and a dot is free. The nodes whole-1 to whole-6 allocate whole GPUs.")

    step("Twelve pods ask for 4 to 30 GiB of one GPU each. They fill GPUs rather than spread over them.")
    for n, memory in enumerate((30, 10, 24, 16, 8, 20, 12, 4, 28, 6, 18, 14)):
        cluster.create(f"chat-{n}", memory=memory)
    show(cluster, pause_s)
    expect(not cluster.waiting, "a pod waits that fits")

    step("Four pods ask for memory and compute of one GPU, and one for two whole GPUs.")
    for n, core in enumerate((50, 30, 20, 60)):
        cluster.create(f"infer-{n}", memory=20, core=core)
    cluster.create("notebook", whole=2)
    show(cluster, pause_s)

    step("A job of five pods with eight GPUs each: four pods are there. Nothing is held for them.")
    for n in range(4):
        cluster.create(f"train-{n}", whole=8, job=("train", 5))
    show(cluster, pause_s, nodes="whole")
    expect(len(cluster.waiting) == 4, "a job started in part")

    step("Its fifth pod comes: the job starts whole, on five nodes.")
    cluster.create("train-4", whole=8, job=("train", 5))
    show(cluster, pause_s, nodes="whole")
    expect(not cluster.waiting, "the job does not start")

    step("Pods of 25 GiB take a GPU each. Then one asks for 36 GiB: enough is free, and no GPU has it.")
    for n in range(27):
        cluster.create(f"batch-{n}", memory=25)
    cluster.create("large", memory=36)
    show(cluster, pause_s, nodes="share")
    expect("large" in cluster.waiting, "the pod does not wait")

    step("A pod of 36 GiB with a high priority comes. The scheduler evicts one pod, and no more.")
    cluster.create("urgent", memory=36, priority=1000)
    cluster.place()
    evicted = cluster.preempt("urgent")
    note(f"Evicted: {', '.join(evicted)}.")
    show(cluster, pause_s, nodes="share")
    expect(len(evicted) == 1 and bool(cluster.node_of("urgent")), "the urgent pod waits")
    print("\nThat was the walk.")


def show(cluster: ScheduledCluster, pause_s: float, nodes: str = "") -> None:
    """Place what can be placed, and show it; only nodes whose name begins with `nodes`."""
    cluster.place()
    print("\n".join(line for line in cluster.picture() if line.strip().startswith(nodes)))
    legend = textwrap.fill(cluster.legend(), 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    print(legend.replace("\N{NO-BREAK SPACE}", " "))
    for name, reason in list(cluster.waiting.items())[:2]:
        note(f"{name} waits: {reason}")
    for event in cluster.events[:2]:
        note(f"Event {event}")
    time.sleep(pause_s)


def step(text: str) -> None:
    print()
    note(text)


def note(text: str) -> None:
    print(textwrap.fill(text, 80, break_on_hyphens=False))  # names of resources have hyphens


def expect(happened: bool, otherwise: str) -> None:
    if not happened:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    exit_with("make demo-scheduler", main)
