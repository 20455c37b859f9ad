"""Reading what versions take from Triton's metrics page."""

from __future__ import annotations

from tidegate_dataplane.agent.memory import parse_memory

PAGE = """# HELP tidegate_model_memory_bytes Private memory of the version's process once it was loaded.
# TYPE tidegate_model_memory_bytes gauge
tidegate_model_memory_bytes{model="ctr",version="1"} 34123776
tidegate_model_memory_bytes{model="ctr",version="2"} 3.5e+07
nv_inference_count{model="ctr",version="3"} 12
"""


def test_every_measured_version_is_read() -> None:
    assert parse_memory(PAGE.splitlines(keepends=True)) == {"ctr": {1: 34_123_776, 2: 35_000_000}}


def test_a_page_without_measurements_says_nothing() -> None:
    assert parse_memory(['nv_inference_count{model="ctr",version="3"} 12\n']) == {}
