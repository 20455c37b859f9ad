"""Select the requests of a sample by their ids: the same ones on every replica, version and retry. Pure."""

from hashlib import blake2b

# It makes the choice independent of other hashes of the same id.
HASH_PERSON = b"tidegate-sample"
HASH_RANGE = 1 << 64


def is_sampled(request_id: str, share: float) -> bool:
    """Return whether the request is in a sample of `share` (0 to 1); a larger sample contains every smaller one."""
    digest = blake2b(request_id.encode(errors="surrogatepass"), digest_size=8, person=HASH_PERSON).digest()
    return int.from_bytes(digest, "big") < share * HASH_RANGE
