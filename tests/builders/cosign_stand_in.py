"""A stand-in for cosign, which records what it is asked to sign: the real one is not built here."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
call = {{"arguments": arguments}}
if "--predicate" in arguments:
    call["predicate"] = json.loads(pathlib.Path(arguments[arguments.index("--predicate") + 1]).read_text())
with open({log!r}, "a") as log:
    log.write(json.dumps(call) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class CosignStandIn:
    """What it was asked."""

    log: Path

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The arguments of each call, and the document that it attests."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


def install_cosign(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CosignStandIn:
    """Put the stand-in first on PATH."""
    log = folder / "cosign-calls"
    program = folder / "cosign-bin" / "cosign"
    program.parent.mkdir()
    program.write_text(_SCRIPT.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return CosignStandIn(log)
