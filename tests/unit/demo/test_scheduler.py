"""The scheduler's walk shows what it promises."""

from demo.scheduler import walk


def test_the_walk(capsys):
    walk(0.0)
    shown = capsys.readouterr().out
    steps = shown.split("\n\n")
    assert max(len(step.splitlines()) for step in steps) <= 40, "a step fits on a screen"
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert not any(line.rsplit(", ")[-1] in "abcdefgh" for line in shown.splitlines() if line), (
        "a letter without its pod"
    )
    steps = [" ".join(step.split()) for step in steps]
    assert "train-0 waits: 20 nodes: node(s) not given to job train: 4 of 5 pods are there" in steps[3]
    assert steps[4].count("rr rr rr rr rr rr rr rr") == 5
    assert "large waits: 8 nodes: node(s) had at most 15 GiB free on one GPU, 36 GiB wanted" in steps[5]
    assert "Event GPUsFragmented: 36 GiB wanted on one GPU" in steps[5]
    assert "Evicted: batch-" in steps[6]
