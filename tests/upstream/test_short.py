# SPDX-License-Identifier: Apache-2.0
"""Some of upstream's own tests, on stock and on patched vLLM; `make test-upstream`
runs the others.
"""

import pytest
import typer
from upstream.run import main
from upstream.selection import CHANGED, DESELECTED, PATHS, SHORT


def test_they_end_as_they_do_on_stock(capsys):
    with pytest.raises(typer.Exit) as ended:
        main(short=True)
    assert ended.value.exit_code == 0, capsys.readouterr().out


def test_the_short_selection_is_a_part_of_the_whole():
    assert set(SHORT) <= set(PATHS)
    assert all(CHANGED.values()) and all(DESELECTED.values())
