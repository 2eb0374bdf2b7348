# SPDX-License-Identifier: Apache-2.0
"""The documentation shows what the tests hold the engine to."""

from entrances.table import DOCUMENT, in_document, table


def test_the_document_shows_the_table_of_the_tests() -> None:
    assert in_document(DOCUMENT.read_text()) == table()
