"""Watches the Secrets of the gateways' TLS port, and reports unusable ones in the log and in metrics."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.kube.transforms import trim_secret
from tidegate.routing.credentials import decode_secret
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.gateway_secrets import GatewaySecrets, GatewaySecretState
from tidegate.xds.metrics import XdsMetrics

_MAX_AGE: Final = timedelta(seconds=30)
"""Without a change of a Secret, a certificate still expires or becomes valid."""

_log = structlog.stdlib.get_logger(__name__)


class GatewayTlsSecrets:
    """The Secrets that the TLS settings name, with a cache each; without `settings`, none."""

    def __init__(self, settings: TlsSettings | None, namespace: str, metrics: XdsMetrics) -> None:
        names = set[str]() if settings is None else {*settings.secrets, settings.client_authority} - {""}
        self.stores = {name: ObjectStore(kinds.SECRET, transform=trim_secret) for name in sorted(names)}
        self._namespace = namespace
        self._secrets = GatewaySecrets(settings)
        self._metrics = metrics
        self._latest: tuple[GatewaySecretState, ...] = ()
        self._changed = False
        self._checked_at: datetime | None = None

    @property
    def latest_secrets(self) -> Sequence[GatewaySecretState]:
        """Return every Secret as of the last `check_secrets`."""
        return self._latest

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a Secret changes."""

        def secret_changed(_: ObjectKey) -> None:
            self._changed = True
            changed()

        for store in self.stores.values():
            store.subscribe(secret_changed)

    def needs_check(self, now: datetime) -> bool:
        """Return whether a Secret has changed since the last check, or that was too long ago; parsing a key takes milliseconds."""
        if not self.stores:
            return False
        return self._changed or self._checked_at is None or now - self._checked_at >= _MAX_AGE

    def check_secrets(self, now: datetime) -> Sequence[GatewaySecretState]:
        """Check every Secret, and report changes in the log and in metrics."""
        entries = {
            name: data
            for name, store in self.stores.items()
            if (data := decode_secret(store.get(ObjectKey(self._namespace, name)))) is not None
        }
        self._changed, self._checked_at = False, now
        before = {(secret.name, secret.role): secret for secret in self._latest}
        self._latest = self._secrets.refresh(entries, now)
        for secret in self._latest:
            if secret != before.get((secret.name, secret.role)):
                _log_secret(secret)
            self._metrics.show_gateway_secret(secret)
        return self._latest


def _log_secret(secret: GatewaySecretState) -> None:
    expires = None if secret.expires_at is None else secret.expires_at.isoformat()
    fields = {"secret": secret.name, "role": secret.role.value, "expires": expires}
    if secret.problem is None:
        _log.info("gateway_secret_taken", **fields)
    else:
        _log.warning(
            "gateway_secret_unusable", problem=secret.problem, last_good=secret.content is not None, **fields
        )
