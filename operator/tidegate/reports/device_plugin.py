"""Report the configuration of NVIDIA's device plugin for a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tidegate.reports.report import Report


class DevicePluginReport(Report):
    """One entry of the device plugin's ConfigMap."""

    key: str
    config: Mapping[str, Any]
    """The content of the plugin's configuration file."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the entry as in `data` of a ConfigMap."""
        del wide
        yield f"{self.key}: |"
        for line in yaml.safe_dump(dict(self.config), sort_keys=False).splitlines():
            yield f"  {line}"

    def object_names(self) -> Iterator[str]:
        """Yield the key."""
        yield self.key
