"""An HTTPS client with a client certificate, for the few calls of the local cluster to its API server."""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.pki import KeyPair

TIMEOUT_S = 5.0


class ApiClient:
    """A client that sends GET and merge patches as one user; threads that share it take turns.

    It keeps its connection open, since a handshake costs both sides more than most answers. Close it at the end.
    """

    def __init__(
        self, server: str, *, authority: Path, credentials: KeyPair, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Use `credentials` for calls to `server` (an https URL); a call that waits for `timeout_s` fails."""
        address = urlsplit(server)
        if address.hostname is None or address.port is None:
            raise ValueError(f"{server!r} is not an https URL with a port")
        self._host, self._port = address.hostname, address.port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(credentials.certificate, credentials.key)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None

    @classmethod
    def as_administrator(cls, pki: Path, server: str, timeout_s: float = TIMEOUT_S) -> "ApiClient":
        """Return a client that uses the administrator's certificate from the certificate folder `pki`."""
        credentials = KeyPair(pki / "admin.crt", pki / "admin.key")
        return cls(server, authority=pki / "ca.crt", credentials=credentials, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        """Return the client, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._close_connection()

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object at `path`, or None if it does not exist.

        Raises LocalClusterError for any other status, and OSError when the server does not answer.
        """
        text = self.get_text(path)
        return None if text is None else cast("dict[str, Any]", json.loads(text))

    def get_text(self, path: str) -> str | None:
        """Return the body at `path` as text, or None on 404; raises as `get` does."""
        status, text = self._send_request("GET", path)
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise LocalClusterError(f"GET {path} answered {status}: {text[:500]}")
        return text

    def merge_patch(self, path: str, changes: Mapping[str, Any]) -> None:
        """Apply a merge patch to the object at `path`; raises as `get` does, and LocalClusterError on 404."""
        status, text = self._send_request("PATCH", path, json.dumps(changes), "application/merge-patch+json")
        if status != http.client.OK:
            raise LocalClusterError(f"PATCH {path} answered {status}: {text[:500]}")

    def list_items(self, path: str) -> list[dict[str, Any]]:
        """Return the items of the list at `path`; none if the path does not exist."""
        collection = self.get(path)
        return [] if collection is None else cast("list[dict[str, Any]]", collection["items"])

    def _send_request(
        self, method: str, path: str, body: str | None = None, content_type: str = "application/json"
    ) -> tuple[int, str]:
        """Send one request; return the status and the body of the response."""
        headers = {"Content-Type": content_type} if body else {}
        # While the server hangs, waiting threads time out as they would with a connection of their own.
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"{method} {path} waited {self._timeout_s:g} s for the call before it")
        try:
            if self._connection is not None:
                try:
                    return _read_response(self._connection, method, path, body, headers)
                except TimeoutError:
                    self._close_connection()
                    raise
                except (http.client.HTTPException, OSError):
                    # The server closed an idle connection, or was restarted. Both methods are idempotent:
                    # a merge patch that is applied twice changes nothing the second time.
                    self._close_connection()
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, context=self._tls, timeout=self._timeout_s
            )
            try:
                return _read_response(self._connection, method, path, body, headers)
            except http.client.HTTPException as error:
                self._close_connection()
                raise ConnectionError(f"the API server closed the connection: {error!r}") from error
            except OSError:
                self._close_connection()
                raise
        finally:
            self._lock.release()

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _read_response(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: str | None,
    headers: Mapping[str, str],
) -> tuple[int, str]:
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    return response.status, response.read().decode(errors="replace")


def has_condition(resource: dict[str, Any], kind: str) -> bool:
    """Return whether the status condition `kind` of a Kubernetes object is True."""
    conditions = resource.get("status", {}).get("conditions", [])
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)
