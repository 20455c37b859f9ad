"""What a model URI asks of the pod: volumes to mount, and nothing else. Fetching is the agent's."""

from collections.abc import Iterable
from urllib.parse import urlsplit


def claims(uris: Iterable[str]) -> tuple[str, ...]:
    """PersistentVolumeClaims named by `pvc://<claim>/<path>` URIs, sorted and without repetition."""
    return tuple(sorted({urlsplit(uri).netloc for uri in uris if uri.startswith("pvc://")}))


def reads_host(uris: Iterable[str]) -> bool:
    """Whether any URI reads the node's own models folder."""
    return any(uri.startswith("file:") for uri in uris)


def is_fetched(uris: Iterable[str]) -> bool:
    """Whether any URI is read over the network, so that what was read is worth keeping on the node."""
    return any(not uri.startswith(("file:", "pvc:")) for uri in uris)
