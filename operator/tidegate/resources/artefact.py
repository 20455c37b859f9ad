"""Find the volumes that a model URI needs in the pod; the agent fetches everything else."""

from collections.abc import Iterable
from urllib.parse import urlsplit


def find_volume_claims(uris: Iterable[str]) -> tuple[str, ...]:
    """Return the PersistentVolumeClaims of `pvc://<claim>/<path>` URIs, sorted and without repetition."""
    return tuple(sorted({urlsplit(uri).netloc for uri in uris if uri.startswith("pvc://")}))


def reads_host(uris: Iterable[str]) -> bool:
    """Return whether any URI reads the node's own models folder."""
    return any(uri.startswith("file:") for uri in uris)


def is_fetched(uris: Iterable[str]) -> bool:
    """Return whether any URI is read over the network, so that a cache on the node pays."""
    return any(not uri.startswith(("file:", "pvc:")) for uri in uris)
