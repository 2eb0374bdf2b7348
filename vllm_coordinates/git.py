# SPDX-License-Identifier: Apache-2.0
"""What git says of a checkout, where there is a git to ask."""

import os
import subprocess
from pathlib import Path


def ask(checkout: Path, *arguments: str) -> str | None:
    """The output of a git command that only looks.

    Args:
        checkout: The top of a checkout, or any other folder.
        arguments: The command, e.g. `"describe", "--tags"`.

    Returns:
        Its output; None where `checkout` is no checkout, there is no git, or git
        has no answer.
    """
    if not (checkout / ".git").exists():
        return None
    # Variables such as GIT_DIR, set in a hook of some other repository, would lead
    # away from this one; and looking takes no lock that a user's git waits for.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout
