"""Define where the xDS servers of `tidegate xds` are, and their responses. Light on imports: commands are declared with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.cli.options import KubeOptions

REPORT_PORT: Final = 18001
CONTENT_PORT: Final = 18002


@dataclass(frozen=True, slots=True)
class XdsServers:
    """Where the xDS servers are. With `address` (host:port), only that one is queried, and nothing else counts."""

    address: str | None
    namespace: str
    options: KubeOptions


@dataclass(frozen=True, slots=True)
class XdsResponses:
    """The responses of the servers by pod or address, at least one; and why the others did not respond."""

    by_server: Mapping[str, dict[str, Any]]
    failures: tuple[str, ...] = ()


def find_kubeconfig() -> Path | None:
    """Find the kubeconfig as kubectl does; None in a pod, which has its ServiceAccount."""
    path = os.environ.get("KUBECONFIG")
    if path:
        return Path(path)
    default_path = Path.home() / ".kube" / "config"
    return default_path if default_path.exists() else None
