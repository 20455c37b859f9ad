"""Credentials of a tenant's Secret; read at every fetch, so that a rotated key is used."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

MAX_KEY_BYTES = 1 << 20
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "GOOGLE_BASE_URL", "HF_ENDPOINT")
SECRET_LENGTH = 8
DOCKER_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
DOCKER_CONFIG = ".dockerconfigjson"


@dataclass(frozen=True, slots=True)
class SecretCredentials:
    """Keys of the Secret `secret`, by name, with the pod's environment as a fallback.

    No value here is ever part of a message: messages name the Secret and its keys.
    """

    secret: str = "tidegate-storage"  # noqa: S105 - a Secret's name
    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def get(self, name: str) -> str | None:
        """Return a key of the Secret, else the variable of that name; None if neither has a value."""
        return self.values.get(name) or self.environment.get(name) or None

    def explain_denial(self) -> str:
        """Return the cause of a denied request, as a clause for an error message."""
        if not self.values:
            return f"credentials are required, and Secret {self.secret} of the namespace does not exist or is empty"
        return f"it does not accept the credentials in Secret {self.secret} of the namespace"

    def endpoint_key(self) -> str:
        """Return the tenant's endpoints as one key: behind another endpoint the same bucket name is another bucket."""
        return " ".join(self.get(name) or "-" for name in ENDPOINTS)

    def redact_secrets(self, text: str) -> str:
        """Return `text` without any value of the Secret that is long enough to be one."""
        for value in self.values.values():
            if len(value) >= SECRET_LENGTH:
                text = text.replace(value, "…")
        return text

    def https_authorization(self) -> str | None:
        """Return the header for an https: URI: from `token`, or from `username` and `password`."""
        if token := self.values.get("token"):
            return f"Bearer {token}"
        if username := self.values.get("username"):
            return _basic_header(username, self.values.get("password", ""))
        return None

    def registry_authorization(self, registry: str) -> str | None:
        """Return the Basic header for a registry: from `.dockerconfigjson`, else `username` and `password`."""
        entry = _docker_entry(self.values.get(DOCKER_CONFIG, ""), registry)
        if auth := entry.get("auth"):
            return f"Basic {auth}" if _is_base64(str(auth)) else None
        if username := entry.get("username"):
            return _basic_header(str(username), str(entry.get("password", "")))
        if username := self.values.get("username"):
            return _basic_header(username, self.values.get("password", ""))
        return None


def read_credentials(folder: Path, secret: str, environment: Mapping[str, str]) -> SecretCredentials:
    """Read the Secret as the kubelet mounts it: one file per key; a Secret that does not exist has no keys."""
    values: dict[str, str] = {}
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        entries = []
    for entry in entries:
        if entry.name.startswith("..") or not entry.is_file() or entry.stat().st_size > MAX_KEY_BYTES:
            continue
        values[entry.name] = entry.read_text(errors="replace").strip()
    return SecretCredentials(secret, values, environment)


def read_named_secret(folder: Path, secret: str, environment: Mapping[str, str]) -> SecretCredentials:
    """Read the Secret that a spec names; without a name there are no credentials."""
    if not secret:
        return SecretCredentials("(none is named)")
    return read_credentials(folder, secret, environment)


def _docker_entry(config: str, registry: str) -> Mapping[str, Any]:
    try:
        auths = json.loads(config or "{}").get("auths", {})
    except (ValueError, AttributeError):
        return {}
    names = [registry, f"https://{registry}", f"https://{registry}/v2/", f"https://{registry}/v1/"]
    if registry in DOCKER_HUB:  # kubectl create secret docker-registry writes its oldest name
        names.append("https://index.docker.io/v1/")
    for name in names:
        entry: Any = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict):
            return cast("Mapping[str, Any]", entry)
    return {}


def _basic_header(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True
