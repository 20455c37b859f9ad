"""What NVIDIA's device plugin is to be told about a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tidegate.reports.report import Report


class DevicePluginReport(Report):
    """One entry of the device plugin's ConfigMap."""

    key: str
    config: Mapping[str, Any]
    """As the plugin's own configuration file has it."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """As it stands below `data` of a ConfigMap."""
        del wide
        yield f"{self.key}: |"
        for line in yaml.safe_dump(dict(self.config), sort_keys=False).splitlines():
            yield f"  {line}"

    def names(self) -> Iterator[str]:
        """The key."""
        yield self.key
