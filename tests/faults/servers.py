"""The model server beside an agent: a pretended one that loads in a moment, for hundreds of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from builders.pretended_server import state_of, versions_of
from tidegate_dataplane.agent.config_text import Config
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
        return state_of(self.configs)

    async def load(self, model: str, version: int, config: Config, *, timeout_s: float) -> Refusal | None:
        """See agent.loop.Server."""
        del timeout_s
        await asyncio.sleep(_LOADS_IN_S)
        if version == BAD_VERSION:
            return Refusal(FailureReason.LOAD_FAILED, "no such operator")
        missing = [each for each in versions_of(config) if not (self.repository / model / str(each)).is_dir()]
        if missing:
            return Refusal(FailureReason.LOAD_FAILED, f"versions {missing} have no folder")
        before = max(versions_of(self.configs[model]), default=0) if model in self.configs else 0
        self.configs[model] = config
        if max(versions_of(config)) != before:
            self.changed(max(versions_of(config)))
        return None

    async def unload(self, model: str) -> None:
        """See agent.loop.Server."""
        self.configs.pop(model, None)

    async def close(self) -> None:
        """Ends it; there is nothing to end."""
