"""The program `kubectl_complete-tidegate`, which kubectl runs when a shell completes `kubectl tidegate …`.

It prints what kubectl expects of plugins: a candidate per line, then a colon and a directive for the shell.
https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from contextlib import redirect_stdout
from typing import Final

_NO_FILE_COMPLETION: Final = ":4"


def main() -> None:
    """Complete the last of the program's arguments."""
    arguments = ["tidegate", *sys.argv[1:]]
    os.environ |= {
        "_TIDEGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(arguments),
        "COMP_CWORD": str(len(arguments) - 1),
    }
    sys.argv[0] = "tidegate"
    candidates = io.StringIO()
    try:
        with redirect_stdout(candidates):
            from tidegate.main import main as tidegate

            tidegate()
    except SystemExit:
        pass
    sys.stdout.write(candidates.getvalue())
    sys.stdout.write(f"{_NO_FILE_COMPLETION}\n")


if __name__ == "__main__":
    main()
