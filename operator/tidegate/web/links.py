"""Make links to tools beside the dashboard, by the addresses that an administrator sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.web.charts import Window

_FLEET_BOARD: Final = "tidegate-fleet"
_RELEASE_BOARD: Final = "tidegate-release"
_POOL_BOARD: Final = "tidegate-pool"


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link to another tool."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class ToolLinks:
    """The addresses of other tools; an empty one gives no link."""

    grafana: str = ""
    """Address of the Grafana with our dashboards, like https://grafana.example.com."""
    logs: str = ""
    """Address with {namespace} and {name} of an Inference, for the logs of its pods."""

    def __post_init__(self) -> None:
        for setting, url in (("web.links.grafana", self.grafana), ("web.links.logs", self.logs)):
            if url and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc):
                message = f"{setting} is '{url}': set an address that begins with https:// or http://"
                raise PermanentError(message)

    def link_inference(self, key: ObjectKey, window: Window) -> Sequence[PageLink]:
        """Return the links of an Inference."""
        logs = self.logs.replace("{namespace}", quote(key.namespace, safe="")).replace(
            "{name}", quote(key.name, safe="")
        )
        grafana = self._link_board(_FLEET_BOARD, window, {"namespace": key.namespace, "inference": key.name})
        return (*grafana, *((PageLink("Logs", logs),) if logs else ()))

    def link_release(self, access: ObjectKey, window: Window) -> Sequence[PageLink]:
        """Return the links of a release."""
        return self._link_board(
            _RELEASE_BOARD, window, {"namespace": access.namespace, "access": access.name}
        )

    def link_pool(self, pool: str, window: Window) -> Sequence[PageLink]:
        """Return the links of a pool."""
        return self._link_board(_POOL_BOARD, window, {"pool": pool})

    def _link_board(self, uid: str, window: Window, variables: Mapping[str, str]) -> Sequence[PageLink]:
        if not self.grafana:
            return ()
        query = {
            **{f"var-{name}": value for name, value in variables.items()},
            "from": f"now-{window}",
            "to": "now",
        }
        return (PageLink("Open in Grafana", f"{self.grafana.rstrip('/')}/d/{uid}?{urlencode(query)}"),)
