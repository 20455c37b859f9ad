"""Entry point: `python3 -m tidegate_dataplane.node_agent`."""

import asyncio
import os

from tidegate_dataplane.agent.logs import log_as_json
from tidegate_dataplane.node_agent.process import run_node_agent
from tidegate_dataplane.node_agent.settings import NodeAgentSettings


def main() -> None:
    """Read the settings from the environment and serve."""
    log_as_json()
    asyncio.run(run_node_agent(NodeAgentSettings.from_environment(os.environ)))


if __name__ == "__main__":
    main()
