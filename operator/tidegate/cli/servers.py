"""Whom `tidegate xds` asks: where the xDS servers are, and what they said. Light: commands are declared with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.cli.options import Where

REPORT_PORT: Final = 18001
CONTENTS_PORT: Final = 18002


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the xDS servers are. With `address` (host:port) one is asked directly, and nothing else counts."""

    address: str | None
    namespace: str
    where: Where


@dataclass(frozen=True, slots=True)
class Answers:
    """What the servers said, by pod or address, at least one; and why those did not that were asked in vain."""

    said: Mapping[str, dict[str, Any]]
    missing: tuple[str, ...] = ()


def usual_kubeconfig() -> Path | None:
    """As kubectl finds it; None in a pod, which has its ServiceAccount."""
    named = os.environ.get("KUBECONFIG")
    if named:
        return Path(named)
    usual = Path.home() / ".kube" / "config"
    return usual if usual.exists() else None
