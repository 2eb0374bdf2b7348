# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of semantic patches: places named by syntax, changes in verbs."""

from .edits import (
    Edit,
    FileEdit,
    MisplacedEdit,
    Tree,
    add_argument,
    add_element,
    add_field,
    add_import,
    add_method,
    add_parameter,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
    replace,
    replace_body,
    replace_condition,
)
from .rust import RustTwin, add_proto_field, rust_error, twin_rust
from .twin import Twin, threads, twin

__all__ = [
    "Edit",
    "FileEdit",
    "MisplacedEdit",
    "RustTwin",
    "Tree",
    "Twin",
    "add_argument",
    "add_element",
    "add_field",
    "add_import",
    "add_method",
    "add_parameter",
    "add_proto_field",
    "append_to",
    "insert_after",
    "insert_before",
    "prepend_to",
    "replace",
    "replace_body",
    "replace_condition",
    "rust_error",
    "threads",
    "twin",
    "twin_rust",
]
