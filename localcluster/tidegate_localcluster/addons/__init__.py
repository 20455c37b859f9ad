"""Kubernetes manifests of the add-ons that a local cluster starts with."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

PLACEHOLDER = re.compile(r"\$\{([A-Z_]+)\}")


def render_manifest(name: str, values: Mapping[str, str]) -> str:
    """Return the manifest `name` (without .yaml) with every ${PLACEHOLDER} replaced.

    Raises KeyError for a placeholder without a value.
    """
    return PLACEHOLDER.sub(lambda match: values[match[1]], read_manifest(name))


def load_prometheus_rules(root: Path) -> Mapping[str, str]:
    """Return the chart's recording rules and alerts as values for Prometheus, each a YAML string.

    `root` is the source tree. The files are read directly because no operator here reads PrometheusRules;
    they cover all that this Prometheus scrapes.
    """
    files = root / "charts" / "tidegate" / "files"
    return {
        name.upper(): json.dumps((files / f"prometheus-{name}.yaml").read_text())
        for name in ("rules", "alerts")
    }


def read_manifest(name: str) -> str:
    """Return the file `name`.yaml without replacements."""
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text()
