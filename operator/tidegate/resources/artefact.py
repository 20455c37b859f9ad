"""Find the volumes that URIs need in the pod; the agent fetches everything else."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from tidegate_dataplane.contract import UriScheme, find_scheme


def find_volume_claims(uris: Iterable[str]) -> tuple[str, ...]:
    """Return the PersistentVolumeClaims of `pvc://<claim>/<path>` URIs, sorted and without repetition."""
    return tuple(sorted({urlsplit(uri).netloc for uri in uris if find_scheme(uri) is UriScheme.PVC}))


def reads_host(uris: Iterable[str]) -> bool:
    """Return whether any URI reads the node's own models folder."""
    return any(find_scheme(uri) is UriScheme.FILE for uri in uris)


def is_fetched(uris: Iterable[str]) -> bool:
    """Return whether any URI is read over the network, so that a cache on the node pays."""
    return any(scheme is None or not scheme.traits.is_mounted for scheme in map(find_scheme, uris))
