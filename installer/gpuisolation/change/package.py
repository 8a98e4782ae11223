"""The package that an operator supplies, a folder, a tar or one image layer: checked by SHA-256, unpacked, read.

docs/installer.md lists its contents: the wrapper, the modules or their sources, a configuration, a version.
"""

import logging
import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuagent.host.cgpu_proc import Version
from gpuisolation.errors import InstallerError, UsageError
from gpuisolation.host.files import digest
from gpuisolation.host.root import Host

log = logging.getLogger(__name__)

WRAPPER = "cgpu-container-wrapper"
CONF = "cgpu.conf"
SUMS = "SHA256SUMS"
MOST_BYTES = 2 * 2**30
_MODULE = re.compile(r"[A-Za-z0-9_-]+\.ko", re.ASCII)


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked package whose hashes are right.

    Attributes:
        folder: where it lies on this machine.
        sha256: identifies the package: of the tar, or of the folder's SHA256SUMS.
    """

    folder: Path
    sha256: str
    version: Version

    def modules(self, kernel: str) -> tuple[Path, ...]:
        """The modules for that kernel; none if it has none.

        Raises:
            InstallerError: one of them was built for another kernel.
        """
        folder = self.folder / "modules" / kernel
        if not folder.is_dir():
            # Modules at the top, or from a build there, may be for several kernels.
            return tuple(module for module in _modules_in(self.folder) if vermagic(module) == kernel)
        modules = _modules_in(folder)
        wrong = []
        for module in modules:
            built_for = vermagic(module)
            if built_for not in {"", kernel}:
                wrong.append(f"{module.name} ({built_for})")
        if wrong:
            raise InstallerError(f"the package's modules/{kernel} has modules of another kernel: {', '.join(wrong)}")
        return modules

    @property
    def builds(self) -> bool:
        return (self.folder / "Makefile").is_file()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels it has modules for."""
        folder = self.folder / "modules"
        kernels = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        kernels.update(vermagic(module) for module in self.folder.glob("*.ko"))
        # A module without vermagic does not say its kernel.
        kernels.discard("")
        return tuple(sorted(kernels))


def _modules_in(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.iterdir() if _MODULE.fullmatch(path.name)))


def unpack(source: Path, sha256: str | None, into: Path) -> Package:
    """Check a package and unpack it into the folder `into`, which is made.

    Raises:
        UsageError: no such package, or no hash to check it by.
        InstallerError: a hash is wrong, it holds what it must not hold, or lacks what it must have.
    """
    into.mkdir(parents=True)
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"--sha256 {sha256}: not a SHA-256 in hexadecimal (64 digits)")
    if source.is_dir():
        identity = _unpack_folder(source, sha256 and sha256.lower(), into)
    elif source.is_file():
        if sha256 is None:
            raise UsageError(f"--package {source}: give --sha256 too; sha256sum prints it")
        identity = _unpack_tar(source, sha256.lower(), into)
    else:
        raise UsageError(f"--package {source}: no such folder or file")
    if not (into / WRAPPER).is_file():
        raise InstallerError(f"{source} has no {WRAPPER} at its top: see the layout in docs/installer.md")
    return Package(into, identity, _version(source, into))


def build(host: Host, package: Package, folder: str, kernel: str) -> None:
    """Have the host build modules for `kernel`; `folder` is the package's path on the host.

    Raises:
        InstallerError: it has no modules for the kernel and cannot be built.
    """
    if package.modules(kernel):
        return
    if not package.builds:
        raise InstallerError(
            f"the package has no modules for kernel {kernel} and no Makefile to build them; "
            f"it has them for: {', '.join(package.kernels) or 'none'}"
        )
    log.info("Started to build the modules", extra={"kernel": kernel})
    output = host.run("make", "-C", folder)
    if output.code != 0:
        tail = output.text.strip()[-800:]
        raise InstallerError(
            f"building the modules for {kernel} ended with {output.code}; the host needs make, gcc and the kernel's "
            f"headers (/lib/modules/{kernel}/build). The last it said: {tail}"
        )
    if not package.modules(kernel):
        raise InstallerError(f"the build made no module (*.ko) for kernel {kernel}")


def vermagic(module: Path) -> str:
    """The kernel release for which a module was built; empty if the module has none."""
    match = re.search(rb"vermagic=([^\s\0]+)", module.read_bytes())
    return match[1].decode("ascii", "replace") if match else ""


def _version(source: Path, folder: Path) -> Version:
    """From the file `version`, or from the C header `version.h`."""
    file = folder / "version"
    header = folder / "version.h"
    text = ""
    if file.is_file():
        text = file.read_text("utf-8", "replace").strip()
    elif header.is_file():
        text = _version_in_header(header.read_text("utf-8", "replace"))
    version = Version.parse(text)
    if version is None:
        raise InstallerError(f"{source} does not say its version: put a file named version into it, like 1.5.10")
    return version


def _version_in_header(header: str) -> str:
    """Its three numbers with dots; a number that it lacks is empty."""
    numbers = []
    for name in ("MAJOR", "MINOR", "BUILD"):
        match = re.search(rf"define\s+CGPU_{name}_VERSION\s+(\d+)", header)
        numbers.append(match[1] if match else "")
    return ".".join(numbers)


def _unpack_folder(source: Path, sha256: str | None, into: Path) -> str:
    sums = source / SUMS
    if not sums.is_file():
        raise UsageError(
            f"--package {source} has no {SUMS}. Write it in there: "
            f"find . -type f ! -name {SUMS} -exec sha256sum {{}} + > {SUMS}"
        )
    identity = digest(sums)
    _same(f"{sums}", identity, sha256)
    wanted = dict(_sums(sums))
    copied = set()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InstallerError(f"{path} is a link or a device node: a package has files and folders only")
        if path.is_dir() or name == SUMS:
            continue
        if name not in wanted:
            raise InstallerError(f"{path} is not in {SUMS}: take it out, or write {SUMS} again")
        copied.add(name)
        to = into / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        _same(str(path), digest(to), wanted[name])
    missing = sorted(wanted.keys() - copied)
    if missing:
        raise InstallerError(f"{source} lacks what {SUMS} names: {', '.join(missing)}")
    return identity


def _sums(path: Path) -> Iterator[tuple[str, str]]:
    """Each file's name and hash, as sha256sum writes them; the name is relative and stays in the package."""
    lines = path.read_text("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"([0-9a-fA-F]{64})\s+\*?(?:\./)?(.+)", line)
        if match is None or _leads_out(match[2]):
            raise InstallerError(f"{path} line {number}: not as sha256sum writes it: {line[:80]!r}")
        yield match[2], match[1].lower()


def _leads_out(name: str) -> bool:
    """Whether a name could lead out of the package's folder."""
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def _same(what: str, actual: str, wanted: str | None) -> None:
    if wanted is not None and actual != wanted:
        raise InstallerError(f"{what} has SHA-256 {actual}, wanted {wanted}: it is another package, or it was damaged")


def _unpack_tar(source: Path, sha256: str, into: Path) -> str:
    copy = into / ".tar"  # hashed and read from one copy: what is checked is what is unpacked
    shutil.copyfile(source, copy)
    _same(str(source), digest(copy), sha256)
    try:
        with tarfile.open(copy) as tar:
            _extract(source, tar, into)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as err:
        raise InstallerError(
            f"{source} cannot be unpacked ({err}): give a tar, plain or with gzip, bzip2 or xz (zstd: unpack it first)"
        ) from err
    finally:
        copy.unlink(missing_ok=True)
    return sha256


def _extract(source: Path, tar: tarfile.TarFile, into: Path) -> None:
    """Write the package's files, which are in one folder of the tar."""
    data_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4; what is refused here is enough
    members = tar.getmembers()
    top = _top(source, members)
    size = 0
    for member in members:
        name = PurePosixPath(member.name.lstrip("/"))
        if not name.is_relative_to(top) or member.isdir():
            continue
        if not member.isreg():
            raise InstallerError(f"{source}: {member.name} is a link or a device node: files and folders only")
        size += member.size
        if size > MOST_BYTES:
            raise InstallerError(f"{source} unpacks to more than {MOST_BYTES >> 30} GiB: not a package of cGPU")
        inner = name.relative_to(top)
        if data_filter is not None:
            data_filter(member.replace(name=str(inner), deep=False), str(into))
        to = into / inner
        to.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        if content is not None:
            with content, to.open("wb") as file:
                shutil.copyfileobj(content, file)


def _top(source: Path, members: list[tarfile.TarInfo]) -> PurePosixPath:
    """The folder in the tar that holds the wrapper: a layer has it somewhere below its root."""
    names = [PurePosixPath(member.name.lstrip("/")) for member in members]
    for name in names:
        if ".." in name.parts:
            raise InstallerError(f"{source}: {name} leads out of the package; get it again from its source")
    tops = {name.parent for name in names if name.name == WRAPPER}
    if len(tops) == 1:
        return tops.pop()
    image_files = {"manifest.json", "index.json", "oci-layout"}
    if any(str(name) in image_files for name in names):
        raise InstallerError(f"{source} is a whole image: give the one layer of it that has {WRAPPER}")
    where = f"in {len(tops)} folders" if tops else "nowhere"
    raise InstallerError(f"{source} has {WRAPPER} {where}, wanted in one: see the layout in docs/installer.md")
