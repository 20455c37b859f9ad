"""`tidegate dashboard --recorded`: what somebody sees who has no cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from builders.pictured_fleet import ACCESS, NAMESPACE, PICTURED, POOL
from builders.waiting import eventually, wait_until


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has opened the printed address."""
    log = tmp_path / "dashboard.log"
    command = [sys.executable, "-m", "tidegate", "dashboard", "--recorded", "--no-browser"]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220  nothing else runs meanwhile
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        )
    try:
        wait_until(
            lambda: "ticket=" in log.read_text() or process.poll() is not None, what="the dashboard is served"
        )
        address = re.search(r"(http://\S+)/enter\?\S+", log.read_text())
        assert address is not None, log.read_text()
        async with httpx.AsyncClient(
            base_url=address[1], follow_redirects=True, trust_env=False, timeout=60
        ) as client:
            assert (await client.get(address[0])).status_code == 200
            yield client
    finally:
        process.terminate()
        process.wait(30)


async def test_a_recorded_fleet_is_shown_with_its_charts_and_nothing_can_be_changed(
    browser: httpx.AsyncClient,
) -> None:
    overview = (await browser.get("/")).text
    assert "realtime: 15 slices" in overview
    rows: list[dict[str, Any]] = []

    async def traffic_is_shown() -> bool:
        rows[:] = (await browser.get("/api/v1/rows/inferences?size=100")).json()["items"]
        return any(float(row["requestsPerSecond"] or 0) > 80 for row in rows if row["name"] == PICTURED)

    await eventually(traffic_is_shown, f"the traffic of {PICTURED} is read", evidence=lambda: rows[:1])
    assert len(rows) == 24
    inference = (await browser.get(f"/inferences/{NAMESPACE}/{PICTURED}?window=15m")).text
    assert "<svg" in inference
    access = (await browser.get(f"/modelaccesses/{NAMESPACE}/{ACCESS}")).text
    assert "every gateway runs the planned routes" in access
    assert "not all" not in access
    assert (await browser.get(f"/computepools/{POOL}")).status_code == 200
    planned = (await browser.post("/api/v1/plan", json={"pool": POOL})).json()
    assert planned["pool"] == POOL
    override = {
        "namespace": NAMESPACE,
        "name": PICTURED,
        "action": "hold",
        "reason": "to see",
        "lasting": "1h",
    }
    refused = await browser.post("/api/v1/overrides", json=override)
    assert refused.status_code == 403
    assert "a recorded fleet, in which nothing can be changed" in refused.text
    refused = await browser.post(f"/api/v1/modelaccesses/{NAMESPACE}/{ACCESS}/release/pause")
    assert refused.status_code == 403
    assert "user visitor may not patch" in refused.text
