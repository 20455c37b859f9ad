"""A short, stable hash of a JSON value, for names and labels."""

import hashlib
import json


def hash_json(value: object) -> str:
    """Return eight hexadecimal digits of the sha256 over the value's canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
