"""What every pretended model server has in common: it is what was loaded into it, and says so."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate_dataplane.agent.config_text import Config
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST
from tidegate_dataplane.agent.state import ServerState


def versions_of(config: Config) -> tuple[int, ...]:
    """The versions that a configuration lists."""
    return tuple(config["version_policy"]["specific"]["versions"])


def state_of(configs: Mapping[str, Config]) -> ServerState:
    """What a server says that has loaded these configurations."""
    return ServerState(
        live=True,
        ready={name: versions_of(config) for name, config in configs.items()},
        digests={
            name: config["parameters"][CONFIG_DIGEST]["string_value"] for name, config in configs.items()
        },
        backends={name: config["backend"] for name, config in configs.items()},
    )
