"""TLS context for a user's broker, from the keys of a Secret."""

import ssl
from collections.abc import Mapping
from pathlib import Path

CA, CERTIFICATE, PRIVATE_KEY = "ca.crt", "tls.crt", "tls.key"


def broker_tls(values: Mapping[str, str], secret_dir: Path, secret: str) -> ssl.SSLContext:
    """Return the context; `values` are those of the Secret, which is mounted at `secret_dir`.

    Raises ValueError when they cannot be used.
    """
    try:
        context = ssl.create_default_context()
        if CA in values:
            context.load_verify_locations(cadata=values[CA])
        if CERTIFICATE in values:
            context.load_cert_chain(secret_dir / CERTIFICATE, secret_dir / PRIVATE_KEY)
    except (OSError, ValueError) as error:
        message = f"{CA}, {CERTIFICATE} or {PRIVATE_KEY} in Secret {secret} of the namespace cannot be used: {error}"
        raise ValueError(message) from error
    return context
