"""A pretended model server beside an agent: it is what was loaded into it, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.state import ServerState
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.contract import FailureReason


@dataclass
class PretendedServer:
    """See agent.loop.Server. It loads what has a folder."""

    repository: Path
    native: bool = False
    """Whether it knows ONNX."""
    live: bool = True
    bad: set[int] = field(default_factory=set[int])
    """Versions that it refuses."""
    ends_under: set[int] = field(default_factory=set[int])
    """Versions that end it."""
    loads_in_s: float = 0.0
    changed: Callable[[int], None] = lambda _: None
    """Hears which version answers from now on."""
    configs: dict[str, ModelConfig] = field(default_factory=dict[str, ModelConfig])
    loads: list[tuple[str, tuple[int, ...], str]] = field(
        default_factory=list[tuple[str, tuple[int, ...], str]]
    )
    """Model, versions and backend of every load."""

    async def observe(self, model: str | None) -> ServerState:
        del model
        if not self.live:
            return ServerState()
        return ServerState(
            live=True,
            ready={name: _versions_of(config) for name, config in self.configs.items()},
            digests={
                name: config["parameters"][CONFIG_DIGEST]["string_value"]
                for name, config in self.configs.items()
            },
            backends={name: config["backend"] for name, config in self.configs.items()},
        )

    async def load_version(
        self, model: str, version: int, config: ModelConfig, *, timeout_s: float
    ) -> VersionRefusal | None:
        del timeout_s
        versions = _versions_of(config)
        self.loads.append((model, versions, config["backend"]))
        await asyncio.sleep(self.loads_in_s)
        if version in self.ends_under:
            self.configs.clear()
            raise ServerGoneError("connection reset")
        if config["backend"] == "onnxruntime" and not self.native:
            return VersionRefusal(FailureReason.BACKEND_MISSING, "no backend 'onnxruntime'")
        if version in self.bad:
            return VersionRefusal(FailureReason.LOAD_FAILED, "no such operator")
        missing = [each for each in versions if not (self.repository / model / str(each)).is_dir()]
        if missing:
            return VersionRefusal(FailureReason.LOAD_FAILED, f"versions {missing} have no folder")
        before = max(_versions_of(self.configs[model]), default=0) if model in self.configs else 0
        self.configs[model] = config
        if max(versions) != before:
            self.changed(max(versions))
        return None

    async def unload_model(self, model: str) -> None:
        self.configs.pop(model, None)

    async def close(self) -> None:
        pass


def _versions_of(config: ModelConfig) -> tuple[int, ...]:
    return tuple(config["version_policy"]["specific"]["versions"])
