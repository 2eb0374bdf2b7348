# SPDX-License-Identifier: Apache-2.0
"""Reads calls from stdin, one JSON line each, and answers with one line."""

import importlib
import json
import os
import sys


def main() -> None:
    # Whatever vLLM prints goes to stderr; the answers are all that is on stdout.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        module = importlib.import_module(f"benchmarks.on_tree.{sys.argv[1]}")
        for line in sys.stdin:
            function, arguments = json.loads(line)
            result = getattr(module, function)(**arguments)
            answers.write(json.dumps(result) + "\n")
            answers.flush()


main()
