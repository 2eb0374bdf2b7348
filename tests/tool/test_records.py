# SPDX-License-Identifier: Apache-2.0
"""Reading and editing RECORD."""

import pytest

from vllm_coordinates.records import Record, record_hash

HELLO = record_hash(b"hello")
STOCK = (
    f"vllm/a.py,{HELLO},5\r\n"
    f'"vllm/with, comma.py",{HELLO},5\r\n'
    "../../../bin/vllm,sha256=abc,9\r\n"
    "vllm/__pycache__/a.cpython-311.pyc,,\r\n"
    "vllm-1.dist-info/RECORD,,\r\n"
)


def test_a_hash_is_urlsafe_base64_without_padding():
    assert record_hash(b"") == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.mark.parametrize(
    ("path", "data", "vouched"),
    [
        pytest.param("vllm/a.py", b"hello", True, id="the recorded bytes"),
        pytest.param("vllm/a.py", b"hullo", False, id="other bytes"),
        pytest.param("vllm/with, comma.py", b"hello", True, id="a quoted path"),
        pytest.param("vllm-1.dist-info/RECORD", b"any", True, id="no recorded hash"),
        pytest.param("vllm/b.py", b"hello", False, id="a path it does not list"),
    ],
)
def test_it_vouches_for(path, data, vouched):
    assert Record(STOCK.encode()).vouches_for(path, data) is vouched


def test_it_vouches_by_other_algorithms_too():
    record = Record(b"a,md5=XUFAKrxLKna5cZ2REBfFkg,5\n")
    assert record.vouches_for("a", b"hello")
    assert not record.vouches_for("a", b"hullo")


def test_a_line_that_is_no_text_comes_back_as_it_was():
    data = b"a\xff.py,,\n"
    edited = Record(data).edited({"b.py": b"x"})
    assert edited.data.startswith(data) and edited.lists("b.py")


def test_no_edit_changes_no_byte():
    assert Record(STOCK.encode()).edited({"vllm/a.py": b"hello"}).data == STOCK.encode()


def test_an_edit_changes_its_own_lines_only():
    edited = Record(STOCK.encode()).edited(
        {"vllm/a.py": b"other!", "vllm/new.py": b"hello"}, unhashed=["state.json"]
    )
    line = f"vllm/a.py,{record_hash(b'other!')},6\r\n"
    assert edited.data.decode() == (
        STOCK.replace(f"vllm/a.py,{HELLO},5\r\n", line, 1)
        + f"vllm/new.py,{HELLO},5\r\n"
        + "state.json,,\r\n"
    )


def test_a_last_line_without_an_ending_gets_one():
    edited = Record(b"a,,").edited({}, unhashed=["b, c"])
    assert edited.data == b'a,,\n"b, c",,\n'


def test_odd_characters_in_a_path_do_not_end_its_line():
    odd = "vllm/a\x0cb\x85c.py,,\n".encode()
    assert Record(odd).edited({}, unhashed=["d"]).data == odd + b"d,,\n"
