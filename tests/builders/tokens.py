"""An issuer of tokens (JWT) for a test: real keys, and tokens good and bad."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import time
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

_IDS = itertools.count(1)


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, size: int) -> str:
    return base64url(value.to_bytes(size, "big"))


class Issuer:
    """Whoever signs tokens; each has a key pair of its own. `algorithm`: RS256, ES256 or EdDSA."""

    def __init__(self, name: str, algorithm: str = "RS256") -> None:
        self.name = name
        self.algorithm = algorithm
        self.key_id = f"key-{next(_IDS)}"
        self._key: Any
        if algorithm == "RS256":
            self._key = rsa.generate_private_key(65537, 2048)
        elif algorithm == "ES256":
            self._key = ec.generate_private_key(ec.SECP256R1())
        else:
            self._key = ed25519.Ed25519PrivateKey.generate()

    @property
    def public_key(self) -> dict[str, str]:
        """As a JSON Web Key."""
        about = {"kid": self.key_id, "alg": self.algorithm, "use": "sig"}
        if self.algorithm == "RS256":
            numbers = self._key.public_key().public_numbers()
            return {**about, "kty": "RSA", "n": _number(numbers.n, 256), "e": _number(numbers.e, 3)}
        if self.algorithm == "ES256":
            point = self._key.public_key().public_numbers()
            return {
                **about,
                "kty": "EC",
                "crv": "P-256",
                "x": _number(point.x, 32),
                "y": _number(point.y, 32),
            }
        raw = self._key.public_key().public_bytes_raw()
        return {**about, "kty": "OKP", "crv": "Ed25519", "x": base64url(raw)}

    @staticmethod
    def key_set(*issuers: Issuer) -> bytes:
        """Their public keys as a JSON Web Key Set."""
        return json.dumps({"keys": [issuer.public_key for issuer in issuers]}).encode()

    def token(self, *, algorithm: str | None = None, **claims: Any) -> str:
        """A token for the next ten minutes, with these claims over the usual ones; None leaves one out."""
        header = {"alg": algorithm or self.algorithm, "typ": "JWT", "kid": self.key_id}
        usual = {"iss": self.name, "sub": "caller", "exp": int(time.time()) + 600}
        body = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        parts = [base64url(json.dumps(part).encode()) for part in (header, body)]
        return ".".join([*parts, base64url(self._sign(header["alg"], ".".join(parts).encode()))])

    def forged(self, token: str, **claims: Any) -> str:
        """`token` with other claims and the signature that it had."""
        header, body, signature = token.split(".")
        known = json.loads(base64.urlsafe_b64decode(body + "=="))
        return ".".join([header, base64url(json.dumps({**known, **claims}).encode()), signature])

    def _sign(self, algorithm: str, data: bytes) -> bytes:
        if algorithm == "RS256":
            return bytes(self._key.sign(data, padding.PKCS1v15(), hashes.SHA256()))
        if algorithm == "ES256":
            r, s = utils.decode_dss_signature(self._key.sign(data, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        if algorithm == "EdDSA":
            return bytes(self._key.sign(data))
        if algorithm == "HS256":
            return hmac.new(json.dumps(self.public_key).encode(), data, hashlib.sha256).digest()
        return b""
