"""The API server and our parser agree on what is valid, whatever people send."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.live_features import live_features_spec, stream_source
from builders.model_access import a_route, model_access_body
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError, PermanentError
from tidegate.kube.kinds import kind_of
from tidegate.kube.transport import ApiRequest, ApiTransport

pytestmark = pytest.mark.usefixtures("crds")

Body = dict[str, Any]
WITHIN = timedelta(seconds=15)
KINDS: dict[str, type[CustomResource]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}

_MATCH = {"headers": [{"name": "x-scene", "exact": "home"}]}
_SHA = "0" * 64
# Each with every field set, so that each field is a place for something strange.
BODIES: tuple[Body, ...] = (
    inference_body(
        model={"name": "ctr", "sha256": _SHA, "format": "ONNX"},
        tier="realtime",
        resources={"cpu": "1", "memory": "2Gi"},
        batching={"mode": "Fixed", "maxBatchSize": 8, "maxQueueDelay": "2ms"},
        rollout={"keepVersions": 2, "warmup": {"requests": 1}},
        logging={"sample": "0.1", "sink": {"files": {"uri": "s3://samples/ctr", "secretName": "samples"}}},
    ),
    inference_body(placement={"pool": "cpu-a", "slices": 2}, resources=None),
    inference_body(
        placement={"pool": "cpu-a"},
        replicas=None,
        scaling={"minReplicas": 1, "maxReplicas": 4},
        value={"perRequest": "2.5"},
    ),
    model_access_body(
        hosts=["ctr.example.com"],
        routes=[
            a_route("vip", match=_MATCH, timeout="1s", retry={"attempts": 1, "budgetPercent": 20}),
            a_route(
                "more",
                match={"headers": [{"name": "x-a", "prefix": "a"}, {"name": "x-b", "regex": "a|b"}]},
                sticky={"header": "x-user"},
                mirror=[{"inference": "shadow", "percent": 10}],
                fallback={"inference": "small"},
            ),
            a_route(
                value="0.5",
                sticky={"cookie": "user"},
                targets=[{"inference": "v3"}, {"inference": "v4", "weight": 0}],
            ),
        ],
        release={
            "route": "default",
            "target": "v4",
            "steps": [1, 50],
            "interval": "2m",
            "checks": [
                {"metric": "ErrorRate", "max": "0.001", "minRequests": 100},
                {"metric": "LatencyP99", "maxRatioToStable": "1.10"},
                {"prometheus": "up", "max": "1"},
            ],
            "onFailure": "Pause",
        },
        protection={
            "rateLimit": {"requests": 10, "per": "1s"},
            "maxConcurrent": 5,
            "maxPending": 5,
            "outlier": {"consecutiveFailures": 5, "ejectFor": "30s"},
            "deadline": True,
            "admissionControl": {"mode": "Priced", "maxFailurePercent": 10},
        },
    ),
    feature_compute_body(),
    feature_compute_body(**live_features_spec(eventStorage="1Gi")),
    feature_compute_body(**live_features_spec(store={"embedded": {}})),
    feature_compute_body(
        **live_features_spec(
            store={
                "redis": {
                    "address": "redis.ads:6379",
                    "tls": True,
                    "secretName": "ads-redis",
                    "keyPrefix": "eu/ads:features",
                    "timeout": "1ms",
                }
            }
        )
    ),
    feature_compute_body(
        sources=[
            stream_source(
                kafka={"tls": True, "sasl": "PLAIN", "secretName": "events"},
                lateness="0s",
                ttl="24h",
                maxEvents=64,
            )
        ],
        features=[{"name": "idle", "timeSince": {"source": "clicks", "default": "0"}}],
    ),
    compute_pool_body(
        tolerations=[{"key": "dedicated", "operator": "Equal", "value": "ads", "effect": "NoSchedule"}],
        tiers={
            "realtime": {"floor": 2},
            "nearline": {"floor": 1, "ceiling": 4},
            "offline": {"floor": 0, "ceiling": 2},
        },
        policy={
            "mode": "Auto",
            "interval": "10s",
            "dwell": "0s",
            "moves": {"maxPercent": 20, "per": "10m"},
            "freeze": [{"schedule": "0 18 * * FRI", "duration": "2h", "timeZone": "Europe/Berlin"}],
            "forecast": {"horizon": "10m", "quantile": "0.95"},
            "events": [
                {"name": "sale", "at": "2026-11-27T20:00:00Z", "duration": "2h", "factor": "100.0"},
                {
                    "name": "lunch",
                    "schedule": "0 12 * * MON-FRI",
                    "timeZone": "Europe/Berlin",
                    "duration": "90m",
                    "factor": "1.25",
                    "inferences": [{"namespace": "ads", "name": "ctr"}],
                },
            ],
            "nodeLoss": {
                "mode": "Shared",
                "expectedEvery": "3600h",
                "sharedSpares": {"maxModels": 4, "maxSlices": 2},
            },
        },
    ),
    compute_override_body(pin={"replicas": 2}),
    compute_override_body(floor={"replicas": 2}),
    compute_override_body(target={"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, hold=True),
    compute_pool_body(
        slice={
            "cpu": None,
            "mps": {
                "slicesPerGPU": 4,
                "runAsUser": 1000,
                "cpu": "1",
                "memory": "1Gi",
            },
        }
    ),
)
STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**33),
    st.text(max_size=12),
    st.text("abAB01.-_:/ \n\x00é", max_size=20),
    st.sampled_from(
        ["", "Disabled", "ONNX", "1", "0", "1e3", "2Gi", "1Ei", "5ms", "0s", "9h", "a.b", "x-envoy-a", "a..b"]
    ),
    st.sampled_from(
        ["file:///a/../b", "s3://bucket", "https://h:1/p", "pvc://c/p?x", "user.user_id", "profiles.x"]
    ),
    st.lists(st.integers(-3, 3), max_size=3),
    st.just({}),
)


def places(node: Any, path: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """The path of every field and list item below `node`."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from places(child, (*path, name))


def changed(body: Body, place: tuple[int | str, ...], value: Any) -> Body:
    result = copy.deepcopy(body)
    node: Any = result
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return result


@st.composite
def strange_bodies(draw: st.DrawFn) -> Body:
    """A valid body with one or two fields replaced by something else."""
    body = draw(st.sampled_from(BODIES))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(list(places(body["spec"], ("spec",)))))
        body = changed(body, place, draw(STRANGE))
    return body


@pytest.fixture(scope="module")
def answer(kubeconfig: Path) -> Iterator[Callable[[Body], Body | None]]:
    """Creates nothing: the object as the API server would store it, or None when it refuses."""
    with asyncio.Runner() as runner:
        transport = runner.run(ApiTransport.connect(kubeconfig, user_agent="tidegate-test"))

        def ask(body: Body) -> Body | None:
            namespace = {"namespace": "default"} if KINDS[body["kind"]].NAMESPACED else {}
            sent = {**body, "metadata": {"name": body["metadata"]["name"], **namespace}}
            query = {"dryRun": "All", "fieldValidation": "Strict"}
            path = kind_of(body).url_path("default")
            try:
                return runner.run(
                    transport.request_json(ApiRequest("POST", path, WITHIN, query=query, body=sent))
                )
            except PermanentError:
                return None

        yield ask
        runner.run(transport.close())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=strange_bodies())
def test_what_the_api_server_takes_parses_and_what_parses_it_takes(
    body: Body, answer: Callable[[Body], Body | None]
) -> None:
    stored = answer(body)
    if stored is not None:
        KINDS[body["kind"]].parse(stored)
    try:
        KINDS[body["kind"]].parse(body)
    except InvalidSpecError:
        return
    assert stored is not None, "the parser takes what the API server refuses"
