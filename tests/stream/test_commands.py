# SPDX-License-Identifier: Apache-2.0
"""record, watch and verify, as a person runs them."""

import json
import os
import re
import resource
import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console
from stream.model import Engine
from stream.publishing import Publisher
from typer.testing import CliRunner, Result

from vllm_coordinates.errors import CoordinatesError
from vllm_coordinates.stream import cli, commands, page, record
from vllm_coordinates.stream.board import Board, Snapshot
from vllm_coordinates.stream.sequence import (
    Batch,
    Delivery,
    Dropped,
    Reason,
    Resumed,
    Suspended,
    Trouble,
)
from vllm_coordinates.stream.subscriber import Source
from vllm_coordinates.stream.watch import Picture, Room
from vllm_coordinates.stream.wire import EventBatch, decode_batch, encode_batch

WHERE = ("tcp://10.0.0.7:5557", 1000.0)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    cli.register(app)
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, arguments)


def batch(seq: int, content: EventBatch) -> Batch:
    payload = encode_batch(content)
    return Batch(*WHERE, seq, payload, decode_batch(payload))


def session() -> list[Delivery]:
    """A conversation of two sessions behind one prefix, with an eviction."""
    engine = Engine(clock=990.0)
    found: list[Delivery] = []
    for seq, (name, length) in enumerate((("ann", 40), ("bob", 24))):
        engine.request(tuple(range(length)), continuation=f"{name}-1", session=name)
        found.append(batch(seq, engine.take("5f0c11d2")))
    engine.evict(9)
    found.append(batch(2, engine.take("5f0c11d2")))
    return found


EVERYTHING: list[Delivery] = [
    *session(),
    Suspended(*WHERE, "batches 3 to 4 are missing"),
    Resumed(*WHERE),
    Trouble(*WHERE, "repeated", "batch 2 came again"),
    Dropped(*WHERE, Reason.EPOCH, "epoch b follows epoch a"),
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record_of(tmp_path / "stream", session())


def record_of(path: Path, deliveries: list[Delivery]) -> Path:
    with path.open("wb") as file:
        recorder = record.Recorder(file)
        for delivery in deliveries:
            recorder.write(delivery)
    return path


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file of this process gets longer than 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    one = Publisher()
    for delivery in session():
        assert isinstance(delivery, Batch)
        one.publish_bytes(delivery.payload)
    yield one
    one.close()


class TestRecording:
    def test_what_is_read_is_what_was_written(self, tmp_path: Path) -> None:
        assert list(record.read(record_of(tmp_path / "r", EVERYTHING))) == EVERYTHING

    def test_one_that_was_cut_off_is_read_to_its_last_whole_delivery_and_says_so(
        self, tmp_path: Path
    ) -> None:
        whole = record_of(tmp_path / "whole", session()).read_bytes()
        two = record_of(tmp_path / "two", session()[:2]).read_bytes()
        cut = tmp_path / "cut"
        for length in (len(two) + 1, len(two) + 9, len(whole) - 1):
            cut.write_bytes(whole[:length])
            *read, last = record.read(cut)
            assert read == session()[:2]
            detail = (
                f"the last {length - len(two)} bytes of {cut}, from byte {len(two)}"
                " on, are no whole delivery: it was cut off there, or is damaged"
            )
            assert last == Trouble(*WHERE, record.CUT_OFF, detail)
        cut.write_bytes(two)
        assert list(record.read(cut)) == session()[:2]

    def test_one_without_a_whole_delivery_is_told(self, recording: Path) -> None:
        recording.write_bytes(recording.read_bytes()[:40])
        (only,) = record.read(recording)
        assert isinstance(only, Trouble) and only.endpoint == str(recording)

    def test_verify_says_that_it_did_not_read_all(self, recording: Path) -> None:
        recording.write_bytes(recording.read_bytes()[:-1])
        result = run("verify", str(recording))
        assert result.exit_code == 0
        assert result.stderr.startswith("warning: the last ")
        assert result.stdout.startswith("0 violations in 2 events of 2 batches")

    def test_a_file_of_another_kind_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "notes"
        path.write_text("nothing")
        assert not record.is_recording(path)
        with pytest.raises(record.RecordingError) as error:
            list(record.read(path))
        assert str(error.value) == (
            f"{path} is no recording: name a file that `vllm-coordinates record` wrote"
        )

    def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(record.RecordingError) as error:
            list(record.read(tmp_path / "none"))
        assert str(error.value) == (
            f"{tmp_path / 'none'} cannot be read (No such file or directory): name a"
            " file that `vllm-coordinates record` wrote"
        )

    def test_damage_in_the_middle_is_told_with_its_place(self, recording: Path) -> None:
        content = bytearray(recording.read_bytes())
        content[40] = 0xC1
        recording.write_bytes(content)
        with pytest.raises(record.RecordingError, match="is damaged at byte 29 "):
            list(record.read(recording))

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            (["Resumed", "e", float("nan")], "nan is no time in seconds since 1970"),
            (["Resumed", "e", float("inf")], "inf is no time in seconds since 1970"),
            (["Resumed", "e", 1e300], "1e+300 is no time in seconds since 1970"),
            (["Resumed", "e", -1.0], "-1.0 is no time in seconds since 1970"),
            (["Batch", "e", 1.0, "", "", -5, b""], "-5 is no number of a batch"),
            (["Dropped", "e", 1.0, "\x1b"], r"'\x1b' is not a valid Reason"),
            (["\x1b", "e", 1.0], r"no delivery is called '\x1b'"),
        ],
        ids=["not a number", "endless", "late", "early", "number", "reason", "kind"],
    )
    def test_what_no_reader_writes_is_damage(
        self, tmp_path: Path, line: list[object], why: str
    ) -> None:
        self.damaged(tmp_path / "crafted", msgspec.msgpack.encode(line), why)

    def test_a_length_beyond_the_file_takes_no_memory(self, tmp_path: Path) -> None:
        path = record_of(tmp_path / "crafted", session())
        path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff and more")
        tracemalloc.start()
        *_, last = record.read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(last, Trouble) and last.what == record.CUT_OFF
        assert peak < 100 << 20

    def test_a_delivery_is_read_whole_in_however_many_pieces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record, "_MOST_AT_ONCE", 7)
        assert list(record.read(record_of(tmp_path / "r", EVERYTHING))) == EVERYTHING

    def test_what_is_nested_too_deep_is_damage(self, tmp_path: Path) -> None:
        whole = msgspec.msgpack.encode(["Resumed", "e", 1.0, "", "", 0, b"", False])
        deep = b"\x99" + whole[1:] + b"\x91" * 100_000
        self.damaged(tmp_path / "crafted", deep, "nested too deep")

    def damaged(self, path: Path, line: bytes, why: str) -> None:
        """Reading a recording of one crafted `line` says what is wrong with it."""
        start = record_of(path, []).read_bytes()
        path.write_bytes(start + len(line).to_bytes(4, "big") + line)
        error = run("verify", str(path)).exception
        assert isinstance(error, record.RecordingError) and error.exit_code == 12
        assert str(error) == (
            f"{path} is damaged at byte {len(start)} ({why}): record it again"
        )

    def test_record_keeps_what_the_publisher_remembers(
        self, tmp_path: Path, publisher: Publisher
    ) -> None:
        path = tmp_path / "stream"
        source = f"{publisher.endpoint},{publisher.replay}"
        result = run("record", source, str(path), "--batches", "3", "--seconds", "20")
        assert result.exit_code == 0
        assert result.output.startswith(f"3 batches in {path}, ")
        read = [d for d in record.read(path) if isinstance(d, Batch)]
        assert [d.payload for d in read] == [p for _, p in publisher.batches]

    def test_record_leaves_no_file_where_there_is_nothing_to_read(
        self, tmp_path: Path
    ) -> None:
        result = run("record", "nowhere", str(tmp_path / "stream"))
        assert isinstance(result.exception, CoordinatesError)
        assert not (tmp_path / "stream").exists()

    def test_record_of_nothing_is_no_success(self, tmp_path: Path) -> None:
        path = tmp_path / "stream"
        silent = Publisher()
        for source, message in (
            (
                "tcp://127.0.0.1:9",
                "no publisher answers at tcp://127.0.0.1:9, so there is nothing to"
                " record: check the address, and that the server is up",
            ),
            (
                silent.endpoint,
                f"{silent.endpoint} sent no batch to record: a publisher sends one only"
                " when its cache changes, so send the server a request, or look longer",
            ),
        ):
            error = run("record", source, str(path), "--seconds", "0.5").exception
            assert isinstance(error, CoordinatesError) and error.exit_code == 11
            assert str(error) == message
            assert not path.exists()
        silent.close()

    def test_a_full_disk_is_told_with_the_file(
        self, tmp_path: Path, publisher: Publisher, little_room: None
    ) -> None:
        path = tmp_path / "stream"
        source = f"{publisher.endpoint},{publisher.replay}"
        error = run("record", source, str(path), "--seconds", "20").exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 7
        assert str(error) == (
            f"{path} cannot be written (File too large): make room for it, or name a"
            " file elsewhere"
        )

    def test_a_folder_that_is_not_there_is_told(
        self, tmp_path: Path, recording: Path
    ) -> None:
        path = tmp_path / "none" / "file"
        for arguments in (
            ("record", "tcp://127.0.0.1:9", str(path)),
            ("watch", "--once", "--html", str(path), str(recording)),
        ):
            error = run(*arguments).exception
            assert isinstance(error, CoordinatesError) and error.exit_code == 7
            assert str(error).startswith(f"{path} cannot be written (No such file")

    @pytest.mark.parametrize("name", ["pipe", "link", "folder", ""])
    def test_what_is_no_regular_file_is_not_written_to(
        self, tmp_path: Path, recording: Path, name: str, monkeypatch: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("pipe")
        (tmp_path / "folder").mkdir()
        before = sorted(tmp_path.iterdir())
        # A source that would be told first if anything were read from it.
        for arguments in (
            ("record", "http://127.0.0.1:9", name),
            ("watch", "--once", "--html", name, "http://127.0.0.1:9"),
        ):
            error = run(*arguments).exception
            assert isinstance(error, CoordinatesError) and error.exit_code == 7
            assert str(error) == (
                f"{name or '.'} is no regular file: name another file to write"
            )
        assert sorted(tmp_path.iterdir()) == before
        assert (tmp_path / "pipe").is_fifo()

    def test_a_page_that_cannot_be_written_leaves_nothing_behind(
        self, tmp_path: Path, recording: Path, little_room: None
    ) -> None:
        out = tmp_path / "page.html"
        error = run("watch", "--once", "--html", str(out), str(recording)).exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 7
        assert list(tmp_path.iterdir()) == [recording]

    def test_record_overwrites_nothing(self, recording: Path) -> None:
        result = run("record", "tcp://127.0.0.1:1", str(recording))
        assert isinstance(result.exception, CoordinatesError)
        assert str(result.exception) == (
            f"{recording} exists: name another file, recordings are not overwritten"
        )


class TestVerify:
    def test_a_good_stream_ends_with_0(self, recording: Path) -> None:
        result = run("verify", str(recording))
        assert result.exit_code == 0
        assert result.output == (
            "0 violations in 3 events of 3 batches; seen: batches with an epoch (3),"
            " removals in coordinates (1), stores in coordinates (2)\n"
        )

    def test_a_broken_one_ends_with_1_and_says_where(self, tmp_path: Path) -> None:
        first, _, third = session()
        path = record_of(tmp_path / "broken", [first, third])
        result = run("verify", str(path))
        assert result.exit_code == 1
        assert result.output.splitlines()[0] == (
            "tcp://10.0.0.7:5557 batch 2: sequence: it follows batch 0"
        )

    def test_nothing_on_the_stream_drives_the_terminal(self, tmp_path: Path) -> None:
        first, _, third = session()
        evil = replace(first, endpoint="tcp://h:1 \x1b[2J\x07")
        path = record_of(
            tmp_path / "evil", [evil, replace(third, endpoint=evil.endpoint)]
        )
        output = run("verify", str(path)).output
        assert "\x1b" not in output and "\x07" not in output and "[2J" in output

    def test_no_detail_of_a_recording_drives_the_terminal(self, tmp_path: Path) -> None:
        trouble = Trouble(*WHERE, record.CUT_OFF, "\x1b[2J\x9b2Jevil")
        path = record_of(tmp_path / "evil", [*session(), trouble])
        result = run("verify", str(path))
        assert result.stderr == "warning: \ufffd[2J\ufffd2Jevil\n"

    def test_a_recording_without_a_batch_is_told(self, tmp_path: Path) -> None:
        path = record_of(tmp_path / "empty", EVERYTHING[-2:])
        error = run("verify", str(path)).exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 11
        assert str(error) == (
            f"{path} holds no batch to check: record a source while its cache changes"
        )

    def test_json_is_a_line_per_violation_and_one_for_the_sum(
        self, tmp_path: Path
    ) -> None:
        path = record_of(tmp_path / "broken", [*session()[::2]])
        output = run("verify", "--json", str(path)).output
        lines = [json.loads(line) for line in output.splitlines()]
        assert lines[0]["rule"] == "sequence" and lines[0]["seq"] == 2
        assert lines[-1]["violations"] == len(lines) - 1

    def test_a_live_stream_is_verified_for_as_long_as_is_asked(
        self, publisher: Publisher
    ) -> None:
        source = f"{publisher.endpoint},{publisher.replay}"
        result = run("verify", source, "--seconds", "3")
        assert result.exit_code == 0
        assert result.output.startswith("0 violations in 3 events of 3 batches")

    def test_a_stream_that_says_nothing_proves_nothing(self) -> None:
        error = run("verify", "--seconds", "0.1", "tcp://127.0.0.1:9").exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 11
        assert str(error) == (
            "no publisher answers at tcp://127.0.0.1:9, so there is nothing to check:"
            " check the address, and that the server is up"
        )


def test_a_terminal_that_lacks_a_sign_shows_another(tmp_path: Path) -> None:
    engine = Engine(clock=990.0)
    engine.request(tuple(range(8)), continuation="c", session="ж")
    batches: list[Delivery] = [batch(0, engine.take("ж")), batch(1, engine.take("ш"))]
    path = record_of(tmp_path / "stream", batches)
    app = typer.Typer()
    cli.register(app)
    terminal = CliRunner(charset="latin-1", env={"COLUMNS": "80"})
    shown = terminal.invoke(app, ["watch", "--once", str(path)])
    assert shown.exit_code == 0 and re.search(r"^\? +c +1 +8 +\?+", shown.output, re.M)
    checked = terminal.invoke(app, ["verify", str(path)])
    assert checked.exit_code == 1 and "epoch: epoch ? follows ?" in checked.output


class TestTheEndByHand:
    """Ctrl-C is how a command ends that is not told when to."""

    @pytest.fixture(autouse=True)
    def ended(self) -> Iterator[None]:
        timer = Timer(3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        yield
        timer.cancel()

    def test_of_record(self, tmp_path: Path, publisher: Publisher) -> None:
        path = tmp_path / "stream"
        source = f"{publisher.endpoint},{publisher.replay}"
        result = run("record", source, str(path))
        assert result.exit_code == 0
        assert result.output.startswith(f"3 batches in {path}, ")

    def test_of_verify(self, publisher: Publisher) -> None:
        result = run("verify", f"{publisher.endpoint},{publisher.replay}")
        assert result.exit_code == 0
        assert result.output.startswith("0 violations in 3 events of 3 batches")

    def test_of_watch(self, publisher: Publisher) -> None:
        result = run("watch", f"{publisher.endpoint},{publisher.replay}")
        assert result.exit_code == 0
        assert "ann-1" in result.output

    def test_of_one_that_read_nothing(self) -> None:
        error = run("verify", "tcp://127.0.0.1:9").exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 11


def test_an_end_by_hand_before_anything_is_read_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: str) -> list[Source]:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "ask", interrupted)
    error = run("verify", "http://127.0.0.1:9").exception
    assert isinstance(error, CoordinatesError) and error.exit_code == 130
    assert str(error) == (
        "stopped before http://127.0.0.1:9 said where its events come from; nothing"
        " was read"
    )


class TestWatch:
    def test_once_shows_a_recording_as_it_ended(self, recording: Path) -> None:
        lines = run("watch", "--once", str(recording)).output.splitlines()
        assert any(re.match(r"ann +ann-1 +1 +36 +[█▓▄░·]+ +9s", line) for line in lines)
        assert any(re.match(r"bob +bob-1 +1 +24 +[█▓▄░·]+ +", line) for line in lines)

    def test_json_has_every_figure(self, recording: Path) -> None:
        snapshot = json.loads(run("watch", "--once", "--json", str(recording)).output)
        (endpoint,) = snapshot["endpoints"]
        assert endpoint["epoch"] == "5f0c11d2" and endpoint["seq"] == 2
        ann, bob = snapshot["sessions"]
        assert (ann["session"], ann["resident"]) == ("ann", [[0, 36]])
        assert (bob["session"], bob["tokens"], bob["length"]) == ("bob", 24, 24)

    def test_json_cannot_drive_the_terminal_or_end_its_line(
        self, tmp_path: Path
    ) -> None:
        label = "\x9b31m\x7f\x85\u2028\u202e\U000e0001 é\N{FIRE}"
        engine = Engine(clock=990.0)
        engine.request(tuple(range(8)), continuation="c", session=label)
        batches: list[Delivery] = [batch(0, engine.take(label))]
        batches.append(batch(1, engine.take("another epoch")))
        path = record_of(tmp_path / "stream", batches)
        for arguments in (("watch", "--once", "--json"), ("verify", "--json")):
            output = run(*arguments, str(path)).output
            assert all(line.isprintable() for line in output.split("\n"))
            assert "\\u009b31m\\u007f\\u0085\\u2028\\u202e\\udb40\\udc01 é" in output
        snapshot = json.loads(run("watch", "--once", "--json", str(path)).output)
        assert snapshot["sessions"][0]["session"] == label

    def test_the_page_needs_nothing_else_and_shows_no_markup_of_a_client(
        self, tmp_path: Path
    ) -> None:
        engine, out = Engine(clock=990.0), tmp_path / "page.html"
        name = "</script><script>alert(1)</script>"
        engine.request(tuple(range(8)), continuation="c", session=name)
        path = record_of(tmp_path / "stream", [batch(0, engine.take())])
        assert run("watch", "--once", "--html", str(out), str(path)).exit_code == 0
        text = out.read_text()
        assert text.count("</script>") == 1
        assert "\\u003c/script>" in text
        assert not re.findall(r"(?:src|href)=|url\(|https?://(?!10\.)", text)

    def test_big_pictures_leave_the_time_to_read(
        self, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn, snapshot = 0, Board.snapshot

        def slowly(board: Board, now: float, **how: Any) -> Snapshot:
            nonlocal drawn, clock
            drawn, clock = drawn + 1, clock + 10
            return snapshot(board, now, **how)

        clock = 0.0
        monkeypatch.setattr(Board, "snapshot", slowly)
        monkeypatch.setattr(commands._Feed, "elapsed", lambda _: clock)
        monkeypatch.setattr(commands._Feed, "deliveries", lambda *_, **__: ticks())

        def ticks() -> Iterator[None]:
            nonlocal clock
            while clock < 400:
                clock += 0.2
                yield None

        run("watch", "--json", "--every", "1", publisher.endpoint)
        assert drawn == 10 + 1  # the last picture is of the end

    def test_the_next_recording_may_be_an_older_one(self, tmp_path: Path) -> None:
        paths = []
        for start in (5000.0, 1000.0):
            first, second, third = session()
            deliveries: list[Delivery] = [
                replace(first, at=start),
                replace(second, at=start + 2),
                replace(third, at=start + 4),
            ]
            paths.append(str(record_of(tmp_path / str(start), deliveries)))
        lines = run("watch", "--json", *paths).output.splitlines()
        _, *shown = [json.loads(line)["at"] for line in lines]
        assert shown == [5000, 5002, 5004, 1000, 1002, 1004]

    def test_a_live_source_is_shown(self, publisher: Publisher) -> None:
        source = f"{publisher.endpoint},{publisher.replay}"
        result = run("watch", "--once", "--json", "--seconds", "3", source)
        (endpoint,) = json.loads(result.output)["endpoints"]
        assert endpoint["state"] == "live" and endpoint["resident_tokens"] == 60

    def test_once_lasts_until_every_endpoint_has_sent_a_batch(
        self, publisher: Publisher
    ) -> None:
        other, engine = Publisher(topic=b"kv"), Engine(clock=990.0)
        engine.request(tuple(range(40)), continuation="c", session="s")
        other.publish(engine.take())
        started = time.monotonic()
        result = run(
            *("watch", "--once", "--json"),
            f"{publisher.endpoint},{publisher.replay}",
            f"{other.endpoint},{other.replay}",
        )
        other.close()
        assert time.monotonic() - started < 3
        assert result.exit_code == 0
        rows = json.loads(result.output)["endpoints"]
        assert sum(row["resident_tokens"] for row in rows) == 100

    def test_once_shows_what_is_there_though_somebody_does_not_answer(
        self, publisher: Publisher
    ) -> None:
        source = f"{publisher.endpoint},{publisher.replay}"
        result = run("watch", "--once", "--json", source, "tcp://127.0.0.1:9")
        assert result.exit_code == 0
        rows = {r["endpoint"]: r for r in json.loads(result.output)["endpoints"]}
        assert rows["tcp://127.0.0.1:9"]["state"] == "unreached"
        assert rows[publisher.endpoint]["state"] == "live"

    def test_one_that_nobody_answers_at_is_told(self) -> None:
        source = "tcp://127.0.0.1:9"
        result = run("watch", "--once", "--json", source)
        error = result.exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 11
        assert str(error) == (
            "no publisher answers at tcp://127.0.0.1:9, so there is nothing to show:"
            " check the address, and that the server is up"
        )
        snapshot = json.loads(result.output)
        assert snapshot["endpoints"][0]["state"] == "unreached"
        (note,) = snapshot["notes"]
        assert note["text"] == "unreached: no publisher answers at this address"
        shown = run("watch", "--once", "--seconds", "3.5", source).output
        assert "No publisher answers: check the addresses" in shown

    def test_a_silent_source_is_waited_for(self) -> None:
        result = run("watch", "--once", "--seconds", "0.1", "tcp://127.0.0.1:9")
        assert "waiting" in result.output
        assert "No batch yet." in result.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["localhost:5557"],
                "localhost:5557 is neither a file nor a source: write"
                " http://host:8000 for a server, tcp://host:5557 for a publisher",
            ),
            (
                ["ftp://host"],
                "'ftp://host' is no address of a socket: write http://host:8000 for a"
                " server, or tcp://host:5557 for a publisher",
            ),
            (
                ["tcp://host:5557,tcp://host:65536"],
                "'tcp://host:65536' is no address of a socket: write http://host:8000"
                " for a server, or tcp://host:5557 for a publisher",
            ),
            (
                ["--sort", "age", "tcp://127.0.0.1:9"],
                "--sort age is none of tokens, shared, seen, session",
            ),
        ],
    )
    def test_what_cannot_be_watched_is_told(
        self, arguments: list[str], message: str
    ) -> None:
        error = run("watch", "--once", *arguments).exception
        assert isinstance(error, CoordinatesError) and str(error) == message


class TestPicture:
    @pytest.fixture
    def board(self) -> Board:
        board = Board()
        for delivery in EVERYTHING[:-1]:
            board.apply(delivery)
        return board

    @pytest.mark.parametrize("width", [80, 100, 200])
    def test_no_line_is_wider_than_the_terminal(self, board: Board, width: int) -> None:
        lines = drawn(board, width)
        assert max(map(len, lines)) <= width
        assert lines[0].split() == [
            *("endpoint", "state", "epoch", "batch", "lag", "events/s", "sessions"),
            "tokens",
        ]

    def test_it_fits_the_height_it_was_cut_for(self, board: Board) -> None:
        snapshot = board.snapshot(1000.0)
        for height in (12, 20, 40):
            room = Room.within(height, snapshot)
            assert len(drawn(board, 80, room)) < height

    def test_a_long_note_takes_one_line_until_the_end(self, board: Board) -> None:
        board.apply(Trouble(*WHERE, "unreadable", "long " * 40))
        room = Room.within(20, board.snapshot(1000.0))
        assert len(drawn(board, 80, room)) < 20
        assert "\n".join(drawn(board, 80, room)).count("long") < 20
        assert "\n".join(drawn(board, 80)).count("long") == 40

    def test_many_endpoints_leave_room_for_sessions(self, board: Board) -> None:
        for number in range(30):
            board.expect(f"tcp://10.0.1.{number}:5557")
        for number in range(20):
            engine = Engine(clock=990.0)
            engine.request(
                tuple(range(8)), continuation=f"c-{number}", session=f"s-{number}"
            )
            board.apply(
                replace(batch(0, engine.take()), endpoint=f"tcp://10.0.1.{number}:5557")
            )
        room = Room.within(24, board.snapshot(1000.0))
        lines = drawn(board, 80, room)
        assert len(lines) < 24
        assert sum("tcp://" in line for line in lines) == 6
        assert sum(line.startswith("s-") for line in lines) >= 5
        # Those that are not live are shown, and keep their numbers.
        assert lines[7].strip() == "and 21 live, 4 waiting"
        assert lines[1].split()[:3] == ["14", "tcp://10.0.1.20:5557", "waiting"]

    def test_labels_cannot_drive_the_terminal(self) -> None:
        engine, board = Engine(clock=990.0), Board()
        engine.request(tuple(range(8)), continuation="c", session="\x1b[2J\x07evil")
        board.apply(batch(0, engine.take()))
        text = "\n".join(drawn(board, 80))
        assert "\x1b" not in text and "\x07" not in text and "evil" in text

    def test_a_session_is_shown_by_what_is_left_of_it(self) -> None:
        """By hash, where reuse is not told: the chain of another session tells it."""
        engine, board = Engine(clock=990.0), Board()
        common = tuple(range(16))
        for number, (name, session, tail) in enumerate(
            (("ann-1", "ann", 50), ("bob-1", "bob", 60), ("ann-2", "ann", 70))
        ):
            tokens = common + tuple(range(tail, tail + 8))
            engine.request(
                tokens, continuation=name, session=session, mode="incremental"
            )
            board.apply(batch(number, engine.take()))
        for _ in range(2):
            engine.evict(len(engine.blocks) - 1)
        board.apply(batch(3, engine.take()))
        ann, bob = sorted(board.snapshot(1000.0).sessions, key=lambda row: row.session)
        assert (ann.continuation, ann.resident, ann.length) == ("ann-1", [(0, 24)], 24)
        assert (bob.resident, bob.shared, ann.shared) == ([(0, 24)], 16, 16)

    def test_what_was_evicted_while_catching_up_is_shown_as_evicted(self) -> None:
        engine, board = Engine(clock=990.0), Board()
        engine.request(
            tuple(range(40)), continuation="c", session="s", mode="incremental"
        )
        board.apply(batch(0, engine.take()))
        for _ in range(4):
            engine.evict(len(engine.blocks) - 1)
        board.apply(batch(1, engine.take()))
        (row,) = board.snapshot(1000.0).sessions
        assert (row.resident, row.length) == ([(0, 24)], 40)

    def test_what_is_not_vouched_for_is_not_evicted(self, board: Board) -> None:
        board.apply(Suspended(*WHERE, "the connection was lost"))
        lines = drawn(board, 80)
        assert sum("not vouched for" in line for line in lines) == 2
        assert not any(row.vouched for row in board.snapshot(1000.0).sessions)

    def test_a_restart_empties_the_rows_and_says_why(self, board: Board) -> None:
        board.apply(EVERYTHING[-1])
        snapshot = board.snapshot(1000.0)
        assert [row.tokens for row in snapshot.sessions] == [0, 0]
        assert snapshot.endpoints[0].dropped == {"epoch": 1}
        assert snapshot.notes[-1].text == (
            "restart: all coverage dropped: epoch b follows epoch a"
        )

    def test_a_page_begins_with_the_first_batch(
        self, board: Board, tmp_path: Path
    ) -> None:
        pages, path, waiting = page.Pages(), tmp_path / "page.html", Board()
        waiting.expect(WHERE[0])
        for at in range(3):
            pages.add(waiting.snapshot(float(at)), path)
        pages.add(board.snapshot(3.0), path, finish=True)
        assert path.read_text().count('"known_sessions":') == 1

    def test_pages_stay_small_over_any_time(self, board: Board, tmp_path: Path) -> None:
        pages, path = page.Pages(), tmp_path / "page.html"
        for at in range(3000):
            pages.add(board.snapshot(float(at)), path)
        pages.add(board.snapshot(3000.0), path, finish=True)
        moments = path.read_text().count('"known_sessions":')
        assert 300 <= moments <= 601


def drawn(board: Board, width: int, room: Room | None = None) -> list[str]:
    console = Console(width=width, height=50, record=True, file=StringIO())
    console.print(Picture(board.snapshot(1000.0), room))
    return console.export_text().splitlines()


@contextmanager
def server(answer: object, *, missing: int = 0) -> Iterator[str]:
    """A server that answers everything with `answer`, as JSON.

    Each answer ends `missing` bytes before it should.
    """

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body) + missing))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_a_server_is_asked_for_its_publishers(publisher: Publisher) -> None:
    with server(
        {
            "0": {
                "endpoint": f"tcp://*:{publisher.ports[0]}",
                "replay_endpoint": f"tcp://*:{publisher.ports[1]}",
                "publisher_epoch": "5f0c11d2",
                "buffer_steps": 10,
            }
        }
    ) as url:
        result = run("watch", "--once", "--json", "--seconds", "3", url)
    (endpoint,) = json.loads(result.output)["endpoints"]
    assert endpoint["endpoint"] == publisher.endpoint
    assert endpoint["seq"] == 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"publisher_epoch": "e", "coordinates": False},
            'no labels: "coordinates": false in its --kv-events-config keeps them off:'
            " none on its events",
        ),
        ({}, "no labels: it is not patched: none on its events"),
        ({"publisher_epoch": "e", "coordinates": True}, None),
    ],
    ids=["switched off", "stock", "on"],
)
def test_a_server_whose_events_bear_no_labels_is_told(
    publisher: Publisher, more: dict[str, Any], text: str | None
) -> None:
    rank = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay, **more}
    with server({"0": rank}) as url:
        result = run("watch", "--once", "--json", "--seconds", "0.5", url)
    notes = [note["text"] for note in json.loads(result.output)["notes"]]
    assert [note for note in notes if "label" in note] == ([text] if text else [])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "names no publisher: start the server with --kv-events-config"),
        ([], "gives no event sources (Expected `object`, got `array`)"),
    ],
)
def test_a_server_without_publishers_is_told(answer: object, message: str) -> None:
    with server(answer) as url:
        error = run("watch", "--once", url).exception
    assert isinstance(error, CoordinatesError) and message in str(error)


def test_an_answer_that_is_cut_off_is_told() -> None:
    with server({}, missing=9) as url:
        error = run("watch", "--once", url).exception
    assert isinstance(error, CoordinatesError)
    assert "gives no event sources (IncompleteRead" in str(error)


def test_a_server_that_is_not_there_is_told() -> None:
    error = run("watch", "--once", "http://127.0.0.1:9").exception
    assert isinstance(error, CoordinatesError)
    assert str(error) == "nothing listens at http://127.0.0.1:9: is it up?"


@pytest.mark.parametrize("url", ["http://localhost:notaport", "http://[::1"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    error = run("watch", "--once", url).exception
    assert isinstance(error, CoordinatesError)


def test_ranks_are_counted_from_no_server_and_no_recording(recording: Path) -> None:
    for source in ("http://127.0.0.1:9", str(recording)):
        error = run("watch", "--once", "--ranks", "2", source).exception
        assert isinstance(error, CoordinatesError) and error.exit_code == 2
        assert str(error) == (
            "--ranks counts up from a publisher's address, as tcp://host:5557, and"
            f" {source} is none: leave it out, all ranks are read anyway"
        )


@pytest.mark.parametrize("command", ["record", "watch", "verify"])
def test_help_names_the_ports_that_the_documents_start_the_server_with(
    command: str,
) -> None:
    output = run(command, "--help").output
    assert "tcp://host:5557,tcp://host:5657" in output


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "ipc:///tmp/x",
            "'ipc:///tmp/x' has no port to count data-parallel ranks from: name each"
            " rank's publisher instead",
        ),
        (
            "tcp://localhost:65535",
            "'tcp://localhost:65536' is no address of a socket: name each rank's"
            " publisher instead",
        ),
    ],
)
def test_ranks_that_cannot_be_counted_are_told(address: str, message: str) -> None:
    error = run("watch", "--once", "--ranks", "2", address).exception
    assert isinstance(error, CoordinatesError) and str(error) == message
