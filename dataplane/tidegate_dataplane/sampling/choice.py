"""Select the requests of a sample by their ids: the same ones on every replica, version and retry. Pure."""

from hashlib import blake2b

# It makes the choice independent of other hashes of the same id.
PURPOSE = b"tidegate-sample"
RANGE = 1 << 64


def chosen(request_id: str, share: float) -> bool:
    """Return whether the request is in a sample of `share` (0 to 1); a larger sample contains every smaller one."""
    digest = blake2b(request_id.encode(errors="surrogatepass"), digest_size=8, person=PURPOSE).digest()
    return int.from_bytes(digest, "big") < share * RANGE
