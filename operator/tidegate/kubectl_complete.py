"""The program `kubectl_complete-tidegate`: kubectl runs it when a shell completes `kubectl tidegate …`.

It answers as kubectl wants plugins to: a candidate on each line, at last a colon and what the shell is to do.
https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from contextlib import redirect_stdout
from typing import Final

_NO_FILES: Final = ":4"


def main() -> None:
    """Completes the last of the program's arguments."""
    words = ["tidegate", *sys.argv[1:]]
    os.environ |= {
        "_TIDEGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    sys.argv[0] = "tidegate"
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            from tidegate.main import main as tidegate

            tidegate()
    except SystemExit:
        pass
    sys.stdout.write(said.getvalue())
    sys.stdout.write(f"{_NO_FILES}\n")


if __name__ == "__main__":
    main()
