"""The kubectl plugin for each platform, as an archive that is the same for the same tree."""

import gzip
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from release.commands import digest, run
from release.krew import COMPLETION, PROGRAM
from release.release_checks import ROOT, VERSION

PLATFORMS = ("linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64")


def plugin_archives(out: Path, address: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Make the archive of the plugin for each platform; its address and digest."""
    for platform in PLATFORMS:
        program = out / PROGRAM
        run(sys.executable, "kubectl/onefile.py", str(program), "--platform", platform)
        archive = out / f"{PROGRAM}-{VERSION}-{platform.replace('/', '-')}.tar.gz"
        completion = ROOT / "kubectl" / COMPLETION
        archive.write_bytes(_archive({PROGRAM: program, COMPLETION: completion, "LICENSE": ROOT / "LICENSE"}))
        program.unlink()
        yield platform, (f"{address}/{archive.name}", digest(archive))


def _archive(files: dict[str, Path]) -> bytes:
    """A tar.gz that is the same for the same files: without owners and times."""
    plain = BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, path in files.items():
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644 if name == "LICENSE" else 0o755
            tar.addfile(entry, BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)
