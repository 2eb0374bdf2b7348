# SPDX-License-Identifier: Apache-2.0
"""A patch as a mail that `git am` takes, in the form of `git format-patch`.

It differs from what git writes where git would have to invent something: there is
no date, so that equal inputs give equal bytes and `git am` takes the time at which
it runs, and the commit in the first line is zero, as with `--zero-commit`.
"""

import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import EmailPolicy

from .difference import file_diff
from .series import Patch

NOBODY = Address("vllm-coordinates", "series", "vllm-coordinates.invalid")
"""The author where nobody is named: `git am` needs one, and whose name it is to be is
not for a tool to guess. RFC 2606 keeps `.invalid` free of real addresses."""

_POLICY = EmailPolicy(linesep="\n", cte_type="8bit")
_WIDTH = 72
_NO_BLOB = "0" * 40


@dataclass(frozen=True)
class FileDiff:
    """A changed file of a mail.

    Attributes:
        path: In vLLM's tree.
        before: Its bytes before the patch; None for a new file.
        after: Its bytes from then on.
        executable: Whether its mode is 755 rather than 644.
    """

    path: str
    before: bytes | None
    after: bytes
    executable: bool = False

    def lines(self) -> Iterator[str]:
        """The diff, with what git wants to know of the file beside its lines."""
        mode = "100755" if self.executable else "100644"
        blobs = f"index {_blob(self.before)}..{_blob(self.after)}"
        yield f"diff --git a/{self.path} b/{self.path}\n"
        if self.before is None:
            yield f"new file mode {mode}\n{blobs}\n"
        else:
            yield f"{blobs} {mode}\n"
        yield from file_diff(self.path, self.before, self.after)


def read_author(text: str) -> Address:
    """The author that `"Name <address>"` names.

    Raises:
        ValueError: It is not of that form.
    """
    form = re.fullmatch(r"([^<>\r\n]*[^<>\s]) <([!-;=?A-~]+)@([!-;=?A-~]+)>", text)
    if form is None:
        raise ValueError(f"{text!r} is not of the form 'Name <address>'")
    return Address(*form.groups())


def file_name(patch: Patch, number: int) -> str:
    """What the mail's file is called, e.g. `"0001-labels-on-events.patch"`."""
    return f"{number:04}-{patch.name.replace('_', '-')}.patch"


def mail(
    patch: Patch, files: Iterable[FileDiff], *, number: int, total: int, author: Address
) -> bytes:
    """The mail of one patch.

    Args:
        patch: Title and text of the message.
        files: What it changes.
        number: Its place in the series of mails, from 1.
        total: How many mails there are.
        author: Whom it is from.
    """
    headers = EmailMessage(_POLICY)
    place = f"{number:0{len(str(total))}}/{total}"
    headers["From"] = author
    headers["Subject"] = f"[PATCH {place}] {patch.title}"
    headers["MIME-Version"] = "1.0"
    headers["Content-Type"] = "text/plain; charset=UTF-8"
    headers["Content-Transfer-Encoding"] = "8bit"
    diff = "".join(line for file in files for line in file.lines())
    return b"".join(
        (
            b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\n",
            headers.as_bytes(),
            message(patch).encode(),
            b"---\n\n",
            diff.encode(),
        )
    )


def message(patch: Patch) -> str:
    """The text of the patch's commit below its title: the four parts."""
    parts = (
        ("Why", patch.why),
        ("Upstream", patch.upstream),
        ("Adds", patch.adds),
        ("Drop when", patch.drop_when),
    )
    return "\n".join(
        textwrap.fill(
            f"{heading}: {text}",
            _WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
        for heading, text in parts
    )


def _blob(data: bytes | None) -> str:
    """The name that git gives a file's bytes, so that `git am --3way` finds them."""
    if data is None:
        return _NO_BLOB
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
