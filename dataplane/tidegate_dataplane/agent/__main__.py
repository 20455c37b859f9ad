"""Entry point: `python3 -m tidegate_dataplane.agent`."""

import asyncio
import os

import structlog

from tidegate_dataplane.agent.process import serve
from tidegate_dataplane.agent.settings import Settings


def main() -> None:
    """Read the settings from the environment and serve."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ]
    )
    asyncio.run(serve(Settings.from_environment(os.environ)))


if __name__ == "__main__":
    main()
