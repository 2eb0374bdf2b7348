# SPDX-License-Identifier: Apache-2.0
"""A name beside another through Rust, and a field of a protobuf message."""

import shutil
import subprocess

import pytest

from semantic.cases import MemoryTree, Rewrite, case, source
from vllm_coordinates.semantic import (
    MisplacedEdit,
    RustTwin,
    add_proto_field,
    insert_after,
    rust_error,
    twin_rust,
)

FILE = "rust/src/invented.rs"
PROTO = "rust/proto/invented.proto"


def thread(places: int, last: tuple[str, ...] = ("Array",)) -> RustTwin:
    return twin_rust(
        "session_id",
        "position_id",
        stems=(("session", "position"), ("Session", "Position")),
        doc="Where it is.",
        last=last,
        within="rust/src/**/*.rs",
        places=places,
    )


TWIN = thread(places=1)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case("nothing to thread", TWIN, "fn main() {}", "fn main() {}"),
        case(
            "a field, with documentation and attributes where the old one has them",
            TWIN,
            """
            struct Parcel {
                /// Whose it is.
                #[serde(default)]
                pub session_id: Option<String>,
                pub weight: u32,
            }
            struct Letter {
                session_id: Option<String>,
            }
            """,
            """
            struct Parcel {
                /// Whose it is.
                #[serde(default)]
                pub session_id: Option<String>,
                /// Where it is.
                #[serde(default)]
                pub position_id: Option<String>,
                pub weight: u32,
            }
            struct Letter {
                session_id: Option<String>,
                position_id: Option<String>,
            }
            """,
        ),
        case(
            "a field between empty lines",
            TWIN,
            """
            struct Parcel {
                pub weight: u32,

                /// Whose it is.
                pub session_id: Option<String>,

                pub route: u32,
            }
            """,
            """
            struct Parcel {
                pub weight: u32,

                /// Whose it is.
                pub session_id: Option<String>,

                /// Where it is.
                pub position_id: Option<String>,

                pub route: u32,
            }
            """,
        ),
        case(
            "a field last, with a default, in what is encoded as an array",
            TWIN,
            """
            struct Array {
                pub session_id: Option<String>,
                pub weight: u32,
            }
            """,
            """
            struct Array {
                pub session_id: Option<String>,
                pub weight: u32,
                /// Where it is.
                #[serde(default)]
                pub position_id: Option<String>,
            }
            """,
        ),
        case(
            "a field of a literal, with a value, short, and on one line",
            TWIN,
            """
            fn f() {
                g(Parcel { session_id: None, weight: 1 });
                g(Parcel {
                    session_id,
                    weight: 1,
                });
                g(Parcel {
                    session_id: request.session_id.clone(),
                    ..Parcel::default()
                });
            }
            """,
            """
            fn f() {
                g(Parcel { session_id: None, position_id: None, weight: 1 });
                g(Parcel {
                    session_id,
                    position_id,
                    weight: 1,
                });
                g(Parcel {
                    session_id: request.session_id.clone(),
                    position_id: request.position_id.clone(),
                    ..Parcel::default()
                });
            }
            """,
        ),
        case(
            "a field of a pattern",
            TWIN,
            """
            fn f(parcel: Parcel) {
                let Parcel { session_id, .. } = parcel;
            }
            """,
            """
            fn f(parcel: Parcel) {
                let Parcel { session_id, position_id, .. } = parcel;
            }
            """,
        ),
        case(
            "a let, and the names that go with it",
            TWIN,
            """
            fn f(headers: Headers) {
                let session_id = headers
                    .get("X-Session-ID")
                    .map(str::to_owned);
            }
            """,
            """
            fn f(headers: Headers) {
                let session_id = headers
                    .get("X-Session-ID")
                    .map(str::to_owned);
                let position_id = headers
                    .get("X-Position-ID")
                    .map(str::to_owned);
            }
            """,
        ),
        case(
            "a function that is named after it, and what imports that",
            TWIN,
            """
            use crate::post::{send, resolve_session_id};

            #[inline]
            fn resolve_session_id(parcel: &Parcel) -> Option<String> {
                parcel.session_id.clone()
            }

            fn other() {}
            """,
            """
            use crate::post::{send, resolve_position_id, resolve_session_id};

            #[inline]
            fn resolve_session_id(parcel: &Parcel) -> Option<String> {
                parcel.session_id.clone()
            }

            #[inline]
            fn resolve_position_id(parcel: &Parcel) -> Option<String> {
                parcel.position_id.clone()
            }

            fn other() {}
            """,
        ),
        case(
            "an assertion, unless its function has a twin",
            TWIN,
            """
            fn test_of_parcels() {
                assert_eq!(parcel.session_id, Some("session-1"));
                assert_eq!(parcel.weight, 1);
            }

            fn test_of_session_id() {
                assert!(parcel.session_id.is_none());
            }
            """,
            """
            fn test_of_parcels() {
                assert_eq!(parcel.session_id, Some("session-1"));
                assert_eq!(parcel.position_id, Some("position-1"));
                assert_eq!(parcel.weight, 1);
            }

            fn test_of_session_id() {
                assert!(parcel.session_id.is_none());
            }

            fn test_of_position_id() {
                assert!(parcel.position_id.is_none());
            }
            """,
        ),
        case(
            "nothing in comments, strings and longer names of variables",
            TWIN,
            """
            // Of the session_id.
            fn f() {
                let my_session_id = "session_id";
            }
            """,
            """
            // Of the session_id.
            fn f() {
                let my_session_id = "session_id";
            }
            """,
        ),
        case(
            "statements in a function of a module, by a verb of Python's",
            insert_after(
                FILE, "tests.carries", "let x = match y { $$$ };", "check(x);"
            ),
            """
            mod tests {
                #[test]
                fn carries() {
                    let x = match y {
                        Some(z) => z,
                        None => panic!(),
                    };
                }
            }
            """,
            """
            mod tests {
                #[test]
                fn carries() {
                    let x = match y {
                        Some(z) => z,
                        None => panic!(),
                    };
                    check(x);
                }
            }
            """,
        ),
    ],
)
def test_rust(edit: Rewrite, before: str, after: str) -> None:
    assert rust_error(before) is None
    assert edit.apply(before) == after
    assert edit.apply(after) == after
    assert rust_error(after) is None


def test_lines_that_end_in_carriage_returns_keep_them() -> None:
    before = "struct P {\r\n    session_id: u8,\r\n}\r\n"
    after = "struct P {\r\n    session_id: u8,\r\n    position_id: u8,\r\n}\r\n"
    assert TWIN.apply(before) == after


def test_places_are_counted_over_all_files() -> None:
    text = "fn f() {\n    let session_id = g();\n}\n"
    tree = MemoryTree({FILE: text, "rust/src/other.rs": text})
    with pytest.raises(MisplacedEdit) as caught:
        TWIN.rewrite(tree)
    assert str(caught.value) == (
        "a place that threads session_id was found twice in rust/src/**/*.rs,"
        " expected once"
    )
    assert tree.texts == {FILE: text, "rust/src/other.rs": text}
    thread(places=2).rewrite(tree)
    assert all("let position_id = g();" in after for after in tree.texts.values())


def test_what_is_no_rust_is_told_by_its_line() -> None:
    assert rust_error("fn f() {}\nfn g() { x = = 1; }\n") == 2


MESSAGE = source(
    """
    message Parcel {
      string name = 1;
      oneof route {
        string road = 2;
      }
    }

    message Letter {
      string name = 1;
    }
    """
)
FIELD = "  // Where it is.\n  optional string position_id = 3;\n"


def test_a_field_goes_to_the_end_of_its_message() -> None:
    edit = add_proto_field(PROTO, "Parcel", FIELD)
    after = MESSAGE.replace("  }\n}\n", f"  }}\n\n{FIELD}}}\n")
    assert edit.apply(MESSAGE) == after
    assert edit.apply(after) == after


def test_a_message_that_is_not_there_is_named() -> None:
    with pytest.raises(MisplacedEdit) as caught:
        add_proto_field(PROTO, "Stamp", FIELD).apply(MESSAGE)
    assert str(caught.value) == (
        f"the definition of message Stamp was found nowhere in {PROTO}, expected once"
    )


@pytest.mark.skipif(shutil.which("rustfmt") is None, reason="there is no rustfmt here")
def test_the_twin_of_formatted_rust_is_formatted() -> None:
    before = source(
        """
        use crate::post::{resolve_session_id, send};

        pub struct Parcel {
            pub session_id: Option<String>,
        }

        fn f(ctx: &Context) -> Parcel {
            let session_id = resolve_session_id(ctx);
            Parcel {
                session_id,
                ..Parcel::of_somebody_else(ctx)
            }
        }
        """
    )
    ran = subprocess.run(
        ["rustfmt", "--check", "--edition", "2024"],
        input=TWIN.apply(before),
        capture_output=True,
        text=True,
    )
    assert ran.stdout + ran.stderr == ""
