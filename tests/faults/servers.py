"""The model server beside an agent: a pretended one that loads in a moment, for hundreds of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate_dataplane.agent.config_text import Config
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST
from tidegate_dataplane.agent.refusals import Refusal
from tidegate_dataplane.agent.state import ServerState
from tidegate_dataplane.contract import FailureReason

BAD_VERSION: Final = 9
_LOADS_IN_S: Final = 0.03


@dataclass(slots=True)
class PretendedServer:
    """Loads whatever has a folder, refuses BAD_VERSION; `changed` hears which version answers from now on."""

    repository: Path
    changed: Callable[[int], None]
    configs: dict[str, Config] = field(default_factory=dict[str, Config])

    async def observe(self, model: str | None) -> ServerState:
        """See agent.loop.Server."""
        del model
        return ServerState(
            live=True,
            ready={name: _versions(config) for name, config in self.configs.items()},
            digests={
                name: config["parameters"][CONFIG_DIGEST]["string_value"]
                for name, config in self.configs.items()
            },
            backends={name: config["backend"] for name, config in self.configs.items()},
        )

    async def load(self, model: str, version: int, config: Config, *, timeout_s: float) -> Refusal | None:
        """See agent.loop.Server."""
        del timeout_s
        await asyncio.sleep(_LOADS_IN_S)
        if version == BAD_VERSION:
            return Refusal(FailureReason.LOAD_FAILED, "no such operator")
        missing = [each for each in _versions(config) if not (self.repository / model / str(each)).is_dir()]
        if missing:
            return Refusal(FailureReason.LOAD_FAILED, f"versions {missing} have no folder")
        before = max(_versions(self.configs[model]), default=0) if model in self.configs else 0
        self.configs[model] = config
        if max(_versions(config)) != before:
            self.changed(max(_versions(config)))
        return None

    async def unload(self, model: str) -> None:
        """See agent.loop.Server."""
        self.configs.pop(model, None)

    async def close(self) -> None:
        """Ends it; there is nothing to end."""


def _versions(config: Config) -> tuple[int, ...]:
    return tuple(config["version_policy"]["specific"]["versions"])
