"""Packages: folders, tars and layers that are right, wrong, damaged and hostile."""

import hashlib
import io
import tarfile

import pytest

from gpuisolation.change import package
from gpuisolation.errors import InstallerError, UsageError
from tests.unit.installer.fakehost import KERNEL, sums


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tar_of(path, entries, mode="w"):
    """A tar of (name or TarInfo, content)."""
    with tarfile.open(path, mode) as tar:
        for entry, content in entries:
            info = entry if isinstance(entry, tarfile.TarInfo) else tarfile.TarInfo(entry)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = [("cgpu-container-wrapper", b"w"), ("version", b"1.5.10\n"), ("modules/5.10/cgpu_km.ko", b"vermagic=5.10 SMP\n")]


def unpack(source, tmp_path, sha256=None):
    return package.unpack(
        source, sha256 if sha256 is not None or source.is_dir() else digest(source), tmp_path / "into"
    )


def complaint(source, tmp_path, sha256=None) -> str:
    with pytest.raises(InstallerError) as caught:
        unpack(source, tmp_path, sha256)
    return str(caught.value)


# -- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_is_checked_against_its_sums(package_of, tmp_path):
    source = package_of("1.5.10")
    found = unpack(source, tmp_path)
    assert str(found.version) == "1.5.10"
    assert found.sha256 == digest(source / "SHA256SUMS")
    assert [path.name for path in found.modules(KERNEL)] == ["cgpu_km_1_5_10.ko", "cgpu_procfs.ko"]
    assert found.modules("6.6.0") == ()
    assert found.kernels == (KERNEL,)


def test_a_folder_without_sums_is_refused_with_the_way_to_make_them(package_of, tmp_path):
    source = package_of()
    (source / "SHA256SUMS").unlink()
    expected = complaint(source, tmp_path)
    assert "has no SHA256SUMS" in expected
    assert "sha256sum {} + > SHA256SUMS" in expected


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda f: (f / "version").write_text("1.5.11\n"), "version has SHA-256"),
        (lambda f: (f / "extra").write_text("x"), "extra is not in SHA256SUMS"),
        (lambda f: (f / "cgpu.conf").unlink(), "lacks what SHA256SUMS names: cgpu.conf"),
        (lambda f: (f / "link").symlink_to("/etc/shadow"), "link is a link or a device node"),
        (lambda f: (f / "SHA256SUMS").write_text("nonsense\n"), "line 1: not as sha256sum writes it"),
        (lambda f: (f / "SHA256SUMS").write_text(f"{'0' * 64}  ../../etc/passwd\n"), "not as sha256sum writes it"),
    ],
)
def test_a_folder_that_is_not_what_its_sums_say_is_refused(package_of, tmp_path, spoil, expected):
    source = package_of()
    spoil(source)
    assert expected in complaint(source, tmp_path)


def test_the_sums_themselves_can_be_pinned(package_of, tmp_path):
    source = package_of()
    assert "SHA256SUMS has SHA-256" in complaint(source, tmp_path, "0" * 64)


@pytest.mark.parametrize(
    ("remove", "expected"),
    [
        ("cgpu-container-wrapper", "has no cgpu-container-wrapper at its top"),
        ("version", "does not say its version: put a file named version into it"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(package_of, tmp_path, remove, expected):
    source = package_of()
    (source / remove).unlink()
    sums(source)
    assert expected in complaint(source, tmp_path)


def test_the_version_may_stand_in_the_c_header(package_of, tmp_path):
    source = package_of()
    (source / "version").unlink()
    (source / "version.h").write_text(
        "#define CGPU_MAJOR_VERSION 1\n#define CGPU_MINOR_VERSION 5\n#define CGPU_BUILD_VERSION 12\n"
    )
    sums(source)
    assert str(unpack(source, tmp_path).version) == "1.5.12"


# -- tars and layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_is_unpacked(tmp_path, mode):
    source = tar_of(tmp_path / "cgpu.tar", GOOD, mode)
    found = unpack(source, tmp_path)
    assert str(found.version) == "1.5.10"
    assert [path.name for path in found.modules("5.10")] == ["cgpu_km.ko"]


def test_a_layer_has_the_package_somewhere_and_links_elsewhere(tmp_path):
    entries = [
        (special("bin", tarfile.SYMTYPE, "usr/bin"), b""),
        ("etc/passwd", b"root"),
        *((f"opt/cgpu/{name}", content) for name, content in GOOD),
    ]
    unpack(tar_of(tmp_path / "layer.tar", entries), tmp_path)
    assert sorted(p.name for p in (tmp_path / "into").iterdir()) == ["cgpu-container-wrapper", "modules", "version"]


def test_a_tar_needs_its_hash_and_the_right_one(tmp_path):
    source = tar_of(tmp_path / "cgpu.tar", GOOD)
    with pytest.raises(UsageError, match="give --sha256 too; sha256sum prints it"):
        package.unpack(source, None, tmp_path / "a")
    with pytest.raises(UsageError, match="not a SHA-256 in hexadecimal"):
        package.unpack(source, "abc", tmp_path / "b")
    with pytest.raises(InstallerError, match="it is another package, or it was damaged"):
        package.unpack(source, "0" * 64, tmp_path / "c")
    assert package.unpack(source, digest(source).upper(), tmp_path / "d").sha256 == digest(source)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (("../../etc/cron.d/x", b"x"), "leads out of the package"),
        (("modules/../../x", b"x"), "leads out of the package"),
        ((special("conf", tarfile.SYMTYPE, "/etc/shadow"), b""), "conf is a link or a device node"),
        ((special("conf", tarfile.LNKTYPE, "version"), b""), "conf is a link or a device node"),
        ((special("mem", tarfile.CHRTYPE), b""), "mem is a link or a device node"),
        ((special("pipe", tarfile.FIFOTYPE), b""), "pipe is a link or a device node"),
        (("other/cgpu-container-wrapper", b"x"), "cgpu-container-wrapper in 2 folders"),
    ],
)
def test_a_hostile_tar_is_refused_and_leaves_nothing_outside(tmp_path, entry, expected):
    before = set(tmp_path.parent.rglob("*"))
    source = tar_of(tmp_path / "cgpu.tar", [*GOOD, entry])
    assert expected in complaint(source, tmp_path)
    outside = set(tmp_path.parent.rglob("*")) - before
    assert {p for p in outside if tmp_path / "into" not in [p, *p.parents]} == {source}


def test_an_absolute_name_is_taken_below_the_folder(tmp_path):
    unpack(tar_of(tmp_path / "cgpu.tar", [(f"/{name}", content) for name, content in GOOD]), tmp_path)
    assert (tmp_path / "into/cgpu-container-wrapper").exists()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("version", b"1.5.10")], "has cgpu-container-wrapper nowhere"),
        ([("manifest.json", b"[]"), ("abc/layer.tar", b"")], "is a whole image: give the one layer of it"),
        ([("cgpu-container-wrapper", b"w"), ("version", b"one")], "does not say its version"),
    ],
)
def test_a_tar_that_is_no_package_is_refused(tmp_path, entries, expected):
    assert expected in complaint(tar_of(tmp_path / "cgpu.tar", entries), tmp_path)


def test_what_is_no_tar_is_refused(tmp_path):
    source = tmp_path / "cgpu.tar"
    source.write_bytes(b"\x28\xb5\x2f\xfd not a tar")
    assert "cannot be unpacked" in complaint(source, tmp_path)
    whole = tar_of(tmp_path / "whole.tar.gz", [*GOOD, ("big", bytes(range(256)) * 400)], "w:gz")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "2").mkdir()
    assert "cannot be unpacked" in complaint(cut, tmp_path / "2")


def test_a_tar_that_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(package, "MOST_BYTES", 1000)
    source = tar_of(tmp_path / "cgpu.tar", [*GOOD, ("big", bytes(2000))])
    assert "unpacks to more than" in complaint(source, tmp_path)


def test_no_such_package(tmp_path):
    with pytest.raises(UsageError, match="no such folder or file"):
        package.unpack(tmp_path / "nowhere", None, tmp_path / "into")


# -- modules -----------------------------------------------------------------------------------------------------------


def test_modules_at_the_top_count_for_the_kernel_they_name(tmp_path):
    entries = [
        *GOOD[:2],
        ("cgpu_km.ko", b"\0vermagic=5.10 SMP\0"),
        ("other.ko", b"\0vermagic=4.19 SMP\0"),
        ("x.ko", b""),
    ]
    found = unpack(tar_of(tmp_path / "cgpu.tar", entries), tmp_path)
    assert [path.name for path in found.modules("5.10")] == ["cgpu_km.ko"]
    assert found.kernels == ("4.19", "5.10")


def test_a_module_in_the_wrong_kernels_folder_is_refused(tmp_path):
    source = tar_of(tmp_path / "cgpu.tar", [*GOOD[:2], ("modules/5.10/cgpu_km.ko", b"vermagic=4.19 SMP\0")])
    with pytest.raises(InstallerError, match=r"modules of another kernel: cgpu_km.ko \(4.19\)"):
        unpack(source, tmp_path).modules("5.10")
