"""What runs in the cluster from the start, as Kubernetes manifests with their placeholders filled in."""

import re
from collections.abc import Mapping
from importlib import resources

PLACEHOLDER = re.compile(r"\$\{([A-Z_]+)\}")


def manifest(name: str, values: Mapping[str, str]) -> str:
    """The manifest `name` (without .yaml) with every ${PLACEHOLDER} replaced.

    Raises KeyError for a placeholder without a value.
    """
    return PLACEHOLDER.sub(lambda found: values[found[1]], document(name))


def document(name: str) -> str:
    """The file `name`.yaml as it is."""
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text()
