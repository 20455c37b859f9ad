"""What runs in the cluster from the start, as Kubernetes manifests with their placeholders filled in."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

PLACEHOLDER = re.compile(r"\$\{([A-Z_]+)\}")


def manifest(name: str, values: Mapping[str, str]) -> str:
    """The manifest `name` (without .yaml) with every ${PLACEHOLDER} replaced.

    Raises KeyError for a placeholder without a value.
    """
    return PLACEHOLDER.sub(lambda found: values[found[1]], document(name))


def rules(root: Path) -> Mapping[str, str]:
    """The chart's recording rules and alerts as values for Prometheus, each a YAML string; `root` is the source tree.

    Nobody here reads PrometheusRules: the files are about all that this Prometheus scrapes.
    """
    files = root / "charts" / "tidegate" / "files"
    return {
        name.upper(): json.dumps((files / f"prometheus-{name}.yaml").read_text())
        for name in ("rules", "alerts")
    }


def document(name: str) -> str:
    """The file `name`.yaml as it is."""
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text()
