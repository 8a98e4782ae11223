"""Properties of the records and specifications of claims: after any kill, reboot, full disk or damage they are true again."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain.refusal import Refusal
from gpuagent.preparer import claim_files
from gpuagent.system.atomic_file import write_whole
from tests.unit.domain.dra.test_prepare import result
from tests.unit.preparer.test_preparer import Prepared

claims = st.integers(0, 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["prepare", "unprepare", "gone", "damage", "half removed"]), claims),
        st.tuples(
            st.just("fail"), claims, st.sampled_from([OSError(28, "No space left on device"), KeyboardInterrupt()])
        ),
        st.tuples(st.sampled_from(["kill", "reboot", "other agent"])),
    ),
    min_size=8,
    max_size=40,
)


class Life:
    """An agent and its disk, and what kubelet knows: the claims that it tried to prepare and has not unprepared."""

    def __init__(self, directory, monkeypatch):
        self.one, self.known, self.running, self.failure = Prepared(directory), set(), set(), None
        monkeypatch.setattr(claim_files, "write_whole", self.write)

    def write(self, path, text, **given):
        """Write, or end before the n-th write."""
        if self.failure:
            left, error = self.failure
            self.failure = (left - 1, error) if left else None
            if not left:
                raise error
        write_whole(path, text, **given)

    @staticmethod
    def uid(number):
        return f"0a1b2c3d-0000-4000-8000-00000000000{number}"

    @staticmethod
    def namespace(number):
        """The claims have one name, each in a namespace of its own."""
        return f"namespace-{number}"

    def paths(self, number):
        """The claim's record and its specification."""
        uid, directory = self.uid(number), self.one.directory
        return directory / f"state/claims/{uid}.json", directory / f"cdi/gpu.gpuagent.io-claim-{uid}.json"

    def step(self, kind, *args):
        match kind:
            case "prepare":
                self.prepare(*args)
            case "unprepare":
                self.one.preparer.unprepare(self.uid(*args))
                self.known -= {*args}
                self.running -= {*args}
            case "gone":
                self.one.claims.pop((self.namespace(*args), "c"), None)
            case "fail":
                self.failure = (args[0] % 2, args[1])
                self.prepare(args[0])
                self.failure = None
            case "damage" if args[0] in self.running:
                self.paths(*args)[0].write_text("{")
            case "half removed" if args[0] in self.known:
                self.paths(*args)[1].unlink(missing_ok=True)
            case "kill":
                self.one.begin()
            case "reboot":
                for path in (self.one.directory / "cdi").glob("*"):
                    path.unlink()
                self.running.clear()
                self.one.begin()
            case "other agent":
                self.one.preparer.refresh()
        self.check()

    def prepare(self, number):
        self.known.add(number)
        namespace = self.namespace(number)
        self.one.add(result(number), namespace=namespace, uid=self.uid(number))
        try:
            self.one.prepare(uid=self.uid(number), namespace=namespace)
        except Refusal:
            return
        except KeyboardInterrupt:
            self.one.begin()
            return
        self.running.add(number)

    def check(self):
        records, specs = (
            {path.name[-41:-5] for path in (self.one.directory / name).glob("*.json")}
            for name in ("state/claims", "cdi")
        )
        assert specs <= records <= {self.uid(number) for number in self.known}
        assert {self.uid(number) for number in self.running} <= {*self.one.changes[-1]}, "its GPUs would be given again"

    def end(self):
        """Kubelet prepares again what has no container, and unprepares the rest; then it unprepares all."""
        for number in self.known:
            if (self.namespace(number), "c") in self.one.claims:
                self.prepare(number)
                assert all(path.exists() for path in self.paths(number))
        for number in {*self.known}:
            self.step("unprepare", number)
        assert (self.one.files(), self.one.changes[-1]) == ([0, 0], [])
        assert not [*(self.one.directory / "cdi").iterdir(), *(self.one.directory / "state/claims").iterdir()]


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_files_are_true_after_whatever_happens(taken):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("state/claims", "cdi"):
            (Path(directory) / name).mkdir(parents=True)
        life = Life(Path(directory), monkeypatch)
        for step in taken:
            life.step(*step)
        life.end()
