"""The journal of a change: written before the first step, removed after the last. The next command finishes it.

The change continues with the step that was begun, and does or undoes it again: each step is idempotent. After a reboot,
which empties the kernel, it starts again: forward from the first step, back from the last that was begun.
"""

import json
import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuisolation.change import steps
from gpuisolation.change.steps import Place, Step
from gpuisolation.errors import InstallerError
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.layer import RECORD, STATE

log = logging.getLogger(__name__)

JOURNAL = f"{STATE}/journal.json"
STAGED = f"{STATE}/staged"
BACKUP = f"{STATE}/backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One change in progress.

    Attributes:
        what: for people: ``install of cGPU 1.5.10``.
        begun: index of the last step that was begun.
        undoing: index of the step that is being undone; None before the way back begins.
        boot: the boot during which this was written.
        failed: why it goes back; empty on the way forward.
    """

    what: str
    steps: tuple[Step, ...]
    begun: int = -1
    undoing: int | None = None
    failed: str = ""
    boot: str = ""

    @property
    def nearly_done(self) -> bool:
        """Whether only the record is missing: the steps that are left do not affect containers."""
        if self.failed or self.begun < len(self.steps) - 1:
            return False
        last = self.steps[-1]
        return isinstance(last, Place) and last.path == RECORD

    def to_json(self) -> bytes:
        data = {
            "what": self.what,
            "begun": self.begun,
            "undoing": self.undoing,
            "failed": self.failed,
            "boot": self.boot,
            "steps": [steps.to_json(step) for step in self.steps],
        }
        return json.dumps(data).encode()


def pending(host: Host) -> Journal | None:
    """The change that an earlier run left unfinished; None if there is none.

    Raises:
        InstallerError: the journal cannot be understood.
    """
    text = host.text(JOURNAL)
    if text is None:
        return None
    try:
        return _understood(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise InstallerError(
            f"{JOURNAL} below {host.root} cannot be understood ({err}). Another version of this program wrote it: "
            f"run that one; the copies of what was replaced are in {BACKUP}"
        ) from err


def _understood(data: Mapping[str, Any]) -> Journal:
    undoing = data["undoing"]
    journal = Journal(
        what=str(data["what"]),
        begun=operator.index(data["begun"]),
        undoing=None if undoing is None else operator.index(undoing),
        failed=str(data["failed"]),
        boot=str(data["boot"]),
        steps=tuple(steps.from_json(step) for step in data["steps"]),
    )
    if not journal.steps or not -1 <= journal.begun < len(journal.steps):
        raise ValueError(f"step {journal.begun} of {len(journal.steps)}")
    return journal


def run(host: Host, files: Files, journal: Journal) -> None:
    """Carry the change through, or take it back.

    Raises:
        InstallerError: it failed. The text says whether the node is as it was before.
    """
    if journal.failed:
        log.warning("Started to undo what an earlier run left", extra={"what": journal.what, "failed": journal.failed})
        _back(host, files, journal)
        return
    boot = boot_of(host)
    # With only the record missing, the steps before it must not be done again: containers may run by now.
    continues = journal.nearly_done or journal.boot == boot
    first = max(journal.begun, 0) if continues else 0
    journal = replace(journal, boot=boot)
    for number, step in enumerate(journal.steps[first:], first):
        journal = replace(journal, begun=max(number, journal.begun))
        files.write(JOURNAL, journal.to_json())
        log.info("Started step", extra={"number": f"{number + 1}/{len(journal.steps)}", "does": str(step)})
        try:
            step.do(host, files)
        except (InstallerError, OSError) as err:
            log.error("Failed at a step", extra={"does": str(step), "error": str(err)})  # noqa: TRY400
            journal = replace(journal, failed=f"{step}: {err}")
            files.write(JOURNAL, journal.to_json())
            _back(host, files, journal)
            raise InstallerError(f"{journal.what} failed. {journal.failed}. The node is as it was before") from err
    clear(host, files)


def _back(host: Host, files: Files, journal: Journal) -> None:
    boot = boot_of(host)
    last = journal.begun
    if journal.undoing is not None and journal.boot == boot:
        last = journal.undoing
    for number in range(last, -1, -1):
        step = journal.steps[number]
        journal = replace(journal, undoing=number, boot=boot)
        files.write(JOURNAL, journal.to_json())
        log.info("Started to undo step", extra={"number": f"{number + 1}/{len(journal.steps)}", "of": str(step)})
        try:
            step.undo(host, files)
        except (InstallerError, OSError) as err:
            raise InstallerError(
                f"{journal.what} failed ({journal.failed}), and to take it back failed too. {step}: {err}. "
                "Cordon the node, reboot it, and run the same command again: it goes on from here"
            ) from err
    clear(host, files)


def boot_of(host: Host) -> str:
    """The kernel's id of this boot; empty where the host does not show it."""
    return (host.text("/proc/sys/kernel/random/boot_id") or "").strip()


def clear(host: Host, files: Files) -> None:
    """End the change: remove the journal first, then the files that only it needed."""
    files.unlink(host.at(JOURNAL, follow=False))
    clean(files)


def clean(files: Files) -> None:
    """Remove the files of a change that has ended, or that never began."""
    files.remove_tree(STAGED)
    files.remove_tree(BACKUP)
