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
from .twin import Twin, threads, twin

__all__ = [
    "Edit",
    "FileEdit",
    "MisplacedEdit",
    "Tree",
    "Twin",
    "add_argument",
    "add_element",
    "add_field",
    "add_import",
    "add_method",
    "add_parameter",
    "append_to",
    "insert_after",
    "insert_before",
    "prepend_to",
    "replace",
    "replace_body",
    "replace_condition",
    "threads",
    "twin",
]
