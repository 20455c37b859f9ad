"""What the dashboards ask of Triton is on the page of a real one, with the labels that they group by."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from typing import Final

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from prometheus_client.parser import text_string_to_metric_families

from builders.probe_model import publish
from fixtures.agent import ModelPod
from fixtures.grafana import every_query
from tidegate_dataplane.contract import Phase
from tidegate_localcluster.ports import unused

pytestmark = [pytest.mark.triton]

_OF_MODELS: Final = {"model", "version"}


def asked_of_models() -> set[str]:
    return {name for each in every_query() for name in re.findall(r"nv_inference_\w+", each.expression)}


def shown(port: int) -> Mapping[str, set[str]]:
    """Each metric of the page, and the labels of its series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            # The parser gives counters the suffix that Triton leaves out.
            found.setdefault(sample.name.removesuffix("_total"), set()).update(sample.labels)
    return found


def test_triton_shows_what_the_dashboards_ask_for(model_pod: ModelPod) -> None:
    publish(model_pod.artefact, 1)
    model_pod.triton.metrics_port = unused("127.0.0.1")
    model_pod.start_agent(model_pod.order())
    model_pod.triton.start()
    model_pod.wait_for("version 1 serves", lambda said: said.phase is Phase.READY and said.serving == 1)
    with triton_grpc.InferenceServerClient(model_pod.triton.grpc) as client:
        tensor = triton_grpc.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), dtype=np.float32))
        client.infer(model_pod.model, [tensor], client_timeout=10)

    page = shown(model_pod.triton.metrics_port)
    model_pod.triton.kill()
    asked = asked_of_models()
    assert len(asked) == 9
    assert {name for name in asked if not page.get(name, set()) >= _OF_MODELS} == set()
    assert "reason" in page["nv_inference_request_failure"]
