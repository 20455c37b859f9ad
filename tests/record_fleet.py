"""Records a running fleet demo, for `tidegate dashboard --recorded` and the pictures of the dashboard: `python tests/record_fleet.py STATE_DIR`.

`make demo-fleet` starts one; after some minutes its charts have a course. The record has the objects as the API server has
them, without what nobody reads, and the answers of its Prometheus that the pictured pages need.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builders.pictured_fleet import NAMESPACE, PICTURED, POOL, WINDOW, complete_record
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.recorded.record import RECORD, RecordedFleet
from tidegate.services import what_if
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.prometheus_api import PrometheusApi, RangeSeries
from tidegate.telemetry.traffic_series import inference_query
from tidegate.web.charts import STEPS, pool_query
from tidegate_localcluster.cluster import LocalCluster

say = functools.partial(print, flush=True)

KINDS = {
    "inferences": kinds.INFERENCE,
    "computepools": kinds.COMPUTE_POOL,
    "allocationdecisions": kinds.ALLOCATION_DECISION,
    "nodes": kinds.NODE,
    "pods": kinds.POD,
}
DECISIONS = 40
"""The newest ones, as a page of the log shows fewer."""


async def record(state_dir: Path) -> Mapping[str, Any]:
    """Return the record of the fleet in that folder."""
    cluster = LocalCluster(state_dir)
    url = cluster.read_status()["prometheus"]
    now = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 60 * 60, UTC)
    settings = ClientSettings(field_manager="tidegate-record")
    async with await KubeClient.connect(settings, kubeconfig=cluster.files.kubeconfig) as client:
        bodies = {name: [trim(body) for body in await client.list(kind)] for name, kind in KINDS.items()}
    bodies["pods"] = [
        body for body in bodies["pods"] if "tidegate.io/inference" in body["metadata"]["labels"]
    ]
    newest = sorted(bodies["allocationdecisions"], key=lambda body: str(body["spec"]["at"]), reverse=True)
    bodies["allocationdecisions"] = newest[:DECISIONS]
    controllers = f"127.0.0.1:{cluster.read_plan().probes['controllers']}"
    solver_input = await what_if.fetch_from_address(controllers, POOL)
    traffic = await Prometheus(url).read_traffic()
    fleet = RecordedFleet(
        now,
        bodies,
        {name: (measured.requests_per_s, measured.latency_p99_ms) for name, measured in traffic.items()},
        {
            name: await read_series(url, query, now)
            for name, query in (
                ("pool", pool_query(POOL)),
                (
                    f"inference/{NAMESPACE}/{PICTURED}",
                    inference_query(ObjectKey(NAMESPACE, PICTURED), "1m"),
                ),
            )
        },
        solver_input.model_dump(mode="json", by_alias=True),
    )
    return complete_record(fleet)


async def read_series(url: str, query: str, now: datetime) -> Sequence[RangeSeries]:
    length = parse_duration(WINDOW)
    return await PrometheusApi(url).query_range(query, now - length, now, length / STEPS)


def trim(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what no page shows."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    trimmed = {**body, "metadata": metadata}
    if "nodeName" in body.get("spec", {}):
        containers = [
            {key: each[key] for key in ("name", "resources") if key in each}
            for each in body["spec"]["containers"]
        ]
        trimmed["spec"] = {"nodeName": body["spec"]["nodeName"], "containers": containers}
        trimmed["metadata"] = {key: value for key, value in metadata.items() if key != "annotations"}
    return trimmed


def main() -> int:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state_dir", type=Path)
    options = parser.parse_args()
    text = json.dumps(asyncio.run(record(options.state_dir)), sort_keys=True, separators=(",", ":"))
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
    say(f"{RECORD}: {RECORD.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
