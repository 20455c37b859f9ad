"""What a real PromQL makes of the figures of Triton: versions that are kept and idle, and pods that are."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.telemetry import expressions

BUSY_FOR = "nv_inference_compute_infer_duration_us"
QUEUED_FOR = "nv_inference_queue_duration_us"
REQUESTS, EXECUTIONS = "nv_inference_request_success", "nv_inference_exec_count"


def of_version(version: int, each_s: Mapping[str, int], pod: str = "ctr-0") -> list[dict[str, str]]:
    """Counters that rise by so much in a second, scraped each 15 s."""
    labels = f'{{namespace="ads", pod="{pod}", model="ctr", version="{version}"}}'
    return [
        {"series": f"{name}{labels}", "values": f"1000000+{15 * rise}x20"} for name, rise in each_s.items()
    ]


# 100 requests in 10 executions of 20 ms a second, each of which waited for 5 ms.
AT_WORK = {REQUESTS: 100, EXECUTIONS: 10, BUSY_FOR: 100 * 20_000, QUEUED_FOR: 100 * 5_000}
IDLE = dict.fromkeys(AT_WORK, 0)


@pytest.fixture
def promtool(prometheus_binary: Path) -> Path:
    """Works out expressions over series that a file has; comes with every Prometheus."""
    return prometheus_binary.resolve().with_name("promtool")


@pytest.mark.parametrize(
    ("expression", "value"),
    [(expressions.BUSY_SHARE, 0.2), (expressions.QUEUE_SECONDS, 0.005)],
    ids=["busy", "queue"],
)
def test_an_idle_version_spoils_nothing_and_an_idle_pod_has_a_zero(
    promtool: Path, tmp_path: Path, expression: str, value: float
) -> None:
    series = [*of_version(4, AT_WORK), *of_version(3, IDLE), *of_version(4, IDLE, pod="ctr-1")]
    samples: list[dict[str, Any]] = [
        {"labels": '{namespace="ads", pod="ctr-0"}', "value": value},
        {"labels": '{namespace="ads", pod="ctr-1"}', "value": 0},
    ]
    # Rounded: the last digit is the machine's.
    asked = [{"expr": f"round({expression}, 0.001)", "eval_time": "4m", "exp_samples": samples}]
    tests = tmp_path / "tests.yml"
    tests.write_text(
        yaml.safe_dump({"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": asked}]})
    )
    done = subprocess.run([promtool, "test", "rules", tests], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
