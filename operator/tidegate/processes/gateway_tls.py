"""The Secrets of the gateways' TLS port: watched by name, and what is wrong with one said where those look who run Tidegate."""

from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.processes.secret_entries import entries_alone, secret_data
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.gateway_secrets import GatewaySecrets, HeldSecret
from tidegate.xds.metrics import XdsMetrics

_log = structlog.stdlib.get_logger(__name__)


class GatewayTls:
    """What there is of each Secret, by its caches in `stores`; nothing of all this without `settings`."""

    def __init__(self, settings: TlsSettings | None, namespace: str, metrics: XdsMetrics) -> None:
        names = set[str]() if settings is None else {*settings.secrets, settings.client_authority} - {""}
        self.stores = {name: ObjectStore(kinds.SECRET, transform=entries_alone) for name in sorted(names)}
        self._namespace = namespace
        self._secrets = GatewaySecrets(settings)
        self._metrics = metrics
        self._held: tuple[HeldSecret, ...] = ()

    @property
    def held(self) -> Sequence[HeldSecret]:
        """Every Secret as of the last look."""
        return self._held

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls `changed` whenever there is something to look at."""
        for store in self.stores.values():
            store.subscribe(lambda _: changed())

    def look(self, now: datetime) -> Sequence[HeldSecret]:
        """Every Secret as it stands, and what became of it into the log and the metrics."""
        found = {
            name: data
            for name, store in self.stores.items()
            if (data := secret_data(store.get(ObjectKey(self._namespace, name)))) is not None
        }
        before = {(one.name, one.role): one for one in self._held}
        self._held = self._secrets.look(found, now)
        for one in self._held:
            if one != before.get((one.name, one.role)):
                _say(one)
            self._metrics.show_gateway_secret(one)
        return self._held


def _say(one: HeldSecret) -> None:
    expires = None if one.expires is None else one.expires.isoformat()
    about = {"secret": one.name, "role": one.role.value, "expires": expires}
    if one.problem is None:
        _log.info("gateway_secret_taken", **about)
    else:
        _log.warning(
            "gateway_secret_unusable", problem=one.problem, last_good=one.content is not None, **about
        )
