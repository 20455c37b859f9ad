"""Which requests are in the sample: a share of all ids, the same ones on every replica, version and retry. Pure."""

from hashlib import blake2b

# So that the choice has nothing to do with what others make of the same id.
PURPOSE = b"tidegate-sample"
RANGE = 1 << 64


def chosen(request_id: str, share: float) -> bool:
    """Return whether the request is in a sample of `share` (0 to 1); what is in a small one is in a larger one."""
    digest = blake2b(request_id.encode(errors="surrogatepass"), digest_size=8, person=PURPOSE).digest()
    return int.from_bytes(digest, "big") < share * RANGE
