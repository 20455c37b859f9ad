"""Find the kubeconfig of a person, and the namespace that it chooses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.errors import PermanentError

_POD_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def find_kubeconfig() -> Path | None:
    """Find the kubeconfig as kubectl does; None in a pod, which has its ServiceAccount."""
    path = os.environ.get("KUBECONFIG")
    if path:
        return Path(path)
    default_path = Path.home() / ".kube" / "config"
    return default_path if default_path.exists() else None


def list_files(kubeconfig: Path) -> list[Path]:
    """Return the existing files of a kubeconfig, which may be a list of paths as in $KUBECONFIG; the first has precedence."""
    paths = (Path(part).expanduser() for part in str(kubeconfig).split(os.pathsep) if part)
    return [path for path in paths if path.exists()]


def check_kubeconfig(kubeconfig: Path) -> None:
    """Check that a file of the kubeconfig exists. Raises PermanentError if none does."""
    if not list_files(kubeconfig):
        message = f"kubeconfig {kubeconfig} does not exist; set $KUBECONFIG or --kubeconfig to another file"
        raise PermanentError(message)


def read_default_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """Return the namespace of the kubeconfig's context, or of the pod; otherwise `default`.

    Raises PermanentError if the kubeconfig does not exist or is none.
    """
    if kubeconfig is None:
        return _POD_NAMESPACE_FILE.read_text().strip() if _POD_NAMESPACE_FILE.exists() else "default"
    check_kubeconfig(kubeconfig)
    name, contexts = context, dict[str, Any]()
    try:
        for file in list_files(kubeconfig):
            content: Any = yaml.safe_load(file.read_text())
            name = name or content.get("current-context")
            contexts = {entry["name"]: entry["context"] for entry in content.get("contexts") or ()} | contexts
        return str(contexts.get(name or "", {}).get("namespace") or "default")
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        message = f"cannot read the context's namespace from kubeconfig {kubeconfig}: {error}"
        raise PermanentError(message) from error
