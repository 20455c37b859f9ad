"""Run the ingester of a pod: `python3 -m tidegate_dataplane.ingester`."""

import asyncio
import os

from tidegate_dataplane.agent.logs import log_as_json
from tidegate_dataplane.ingester.process import run_ingester
from tidegate_dataplane.ingester.settings import IngesterSettings

if __name__ == "__main__":
    log_as_json()
    asyncio.run(run_ingester(IngesterSettings.from_environment(os.environ)))
