"""The Kubernetes objects that a spec becomes, whole: a diff here is a change that reaches every cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from builders.backfill import backfill_spec
from builders.batch import batch_spec
from builders.compute_pool import a_compute_pool
from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.live_features import live_features_spec, stream_source
from builders.model_access import a_model_access
from builders.pipeline import some_callees
from fixtures.golden import CheckGolden
from tidegate.api.reasons import Reason
from tidegate.planning.access.pipelines import PipelinesObserved, plan_pipelines
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.placement import PlacementResult
from tidegate.planning.pools.spill_over import merge_placements
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import make_slice_resources

FOLDER = Path(__file__).parent / "objects"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = ServingSettings(
    dataplane_image="tidegate/dataplane:1",
    triton_image="tidegate/triton:1",
    gateway="tidegate-gateway.tidegate.svc:8080",
    client_ca="-----BEGIN CERTIFICATE-----\n",
    models_host_path="/models",
    allowed_hosts=("models.example.com",),
)


def _documents(plan: ReconcilePlan) -> str:
    return yaml.safe_dump_all([dict(manifest) for manifest in plan.apply], sort_keys=False, width=120)


def test_inference_from_the_nodes_folder(check_golden: CheckGolden) -> None:
    inference = an_inference(
        model={"name": "ctr", "uri": "file:///models/ctr", "version": "3"},
        replicas=2,
        resources={"cpu": "1500m", "memory": "4096Mi"},
        batching={"mode": "Fixed", "maxBatchSize": 64, "maxQueueDelay": "2ms"},
    )
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7), SETTINGS)

    check_golden(FOLDER / "inference-file.yaml", _documents(plan))


def test_inference_from_a_volume_claim(check_golden: CheckGolden) -> None:
    inference = an_inference(model={"uri": "pvc://models/ctr"}, tier="offline")
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7), SETTINGS)

    check_golden(FOLDER / "inference-pvc.yaml", _documents(plan))


def test_inference_with_a_batch(check_golden: CheckGolden) -> None:
    inference = an_inference(
        model={"uri": "pvc://models/ctr"},
        tier="offline",
        replicas=2,
        batch=batch_spec(
            input={"uri": "pvc://lake/users"},
            output={"uri": "pvc://lake/scores"},
            deadline="6h",
            secretName="lake",
        ),
    )
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7), SETTINGS)

    check_golden(FOLDER / "inference-batch.yaml", _documents(plan))


def test_inference_from_a_registry_with_a_cache_on_the_node(check_golden: CheckGolden) -> None:
    settings = replace(SETTINGS, node_cache_path="/var/cache/models", node_cache_bytes=1 << 30)
    inference = an_inference(
        model={
            "uri": "oci://registry.example.com/ads/ctr",
            "version": "31",
            "revision": "v3.1-final",
            "secretName": "models-ads",
        },
        serviceAccountName="models-reader",
    )
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7), settings)

    check_golden(FOLDER / "inference-oci.yaml", _documents(plan))


def test_inference_that_logs_samples_to_a_volume_claim(check_golden: CheckGolden) -> None:
    files = {"uri": "pvc://samples/ctr", "secretName": "samples-writer"}
    inference = an_inference(logging={"sample": "0.05", "sink": {"files": files}})
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7), SETTINGS)

    check_golden(FOLDER / "inference-samples.yaml", _documents(plan))


def test_inference_on_slices_of_a_pool(check_golden: CheckGolden) -> None:
    toleration = {"key": "dedicated", "value": "ads", "effect": "NoSchedule"}
    pool = a_compute_pool(slice={"cpu": {"cpu": "500m", "memory": "1Gi"}}, tolerations=[toleration])
    inference = an_inference(placement={"pool": "cpu-a", "slices": 2}, replicas=2)
    resources = make_slice_resources(pool, 2, inference.spec.tier)
    placement = PlacementResult(resources, 2, Verdict(True, Reason.PLACED, ""))
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7, placement=placement), SETTINGS)

    check_golden(FOLDER / "inference-pool.yaml", _documents(plan))


def test_inference_in_two_pools(check_golden: CheckGolden) -> None:
    pools = [{"name": "cpu-a", "slices": 2}, {"name": "cpu-b", "relativeCapacity": "0.4"}]
    inference = an_inference(replicas=3, placement={"pools": pools})
    results = [
        PlacementResult(
            make_slice_resources(
                a_compute_pool(name, nodeSelector={"pool": name}), slices, inference.spec.tier
            ),
            replicas,
            Verdict(True, Reason.PLACED, ""),
            replicas,
            name,
        )
        for name, slices, replicas in (("cpu-a", 2, 2), ("cpu-b", 1, 1))
    ]
    placement = merge_placements(results, 3)
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7, placement=placement), SETTINGS)

    check_golden(FOLDER / "inference-two-pools.yaml", _documents(plan))


def test_inference_on_a_slice_of_a_gpu(check_golden: CheckGolden) -> None:
    mps = {"slicesPerGPU": 4, "runAsUser": 1000, "cpu": "4", "memory": "16Gi"}
    pool = a_compute_pool("gpu-a", slice={"cpu": None, "mps": mps})
    inference = an_inference(placement={"pool": "gpu-a"}, tier="nearline", model={"format": "TensorRT"})
    resources = make_slice_resources(pool, 1, inference.spec.tier)
    placement = PlacementResult(resources, 1, Verdict(True, Reason.PLACED, ""))
    plan = plan_inference(InferenceObserved(inference, NOW, epoch=7, placement=placement), SETTINGS)

    check_golden(FOLDER / "inference-gpu.yaml", _documents(plan))


def test_feature_compute(check_golden: CheckGolden) -> None:
    plan = plan_features(FeaturesObserved(a_feature_compute(), NOW), SETTINGS)

    check_golden(FOLDER / "feature-compute.yaml", _documents(plan))


def test_feature_compute_with_streams(check_golden: CheckGolden) -> None:
    views = stream_source("views", kafka={"tls": True, "sasl": "PLAIN", "secretName": "kafka-reader"})
    sources = [stream_source(nats={"secretName": "events-reader"}), views]
    features = [
        {"name": "hist", "sequence": {"field": "clicks.item_id", "last": 20}},
        {"name": "seen", "timeSince": {"source": "views"}},
        {"name": "place", "bucketize": {"field": "request.position", "boundaries": [1, 10]}},
    ]
    body = a_feature_compute(
        **live_features_spec(sources=sources, features=features), eventStorage="2Gi", tableStorage="40Gi"
    )
    plan = plan_features(FeaturesObserved(body, NOW), SETTINGS)

    check_golden(FOLDER / "feature-compute-streams.yaml", _documents(plan))


def test_feature_compute_with_a_backfill(check_golden: CheckGolden) -> None:
    features = [{"name": "hist", "sequence": {"field": "clicks.item_id", "last": 20}}]
    body = a_feature_compute(
        **live_features_spec(features=features, backfill=backfill_spec(secretName="lake")),
        tableStorage="40Gi",
    )
    plan = plan_features(FeaturesObserved(body, NOW), SETTINGS)
    plan = replace(plan, apply=(*plan.apply, *plan.backfill.apply))

    check_golden(FOLDER / "feature-compute-backfill.yaml", _documents(plan))


def test_feature_compute_with_a_redis(check_golden: CheckGolden) -> None:
    sources = [stream_source(nats={"secretName": "events-reader"})]
    features = [{"name": "seen", "timeSince": {"source": "clicks"}}]
    redis = {"address": "redis.ads:6379", "secretName": "ads-redis", "tls": True}
    body = a_feature_compute(
        **live_features_spec(sources=sources, features=features, replicas=3), store={"redis": redis}
    )
    plan = plan_features(FeaturesObserved(body, NOW), SETTINGS)

    check_golden(FOLDER / "feature-compute-redis.yaml", _documents(plan))


def test_pipeline(check_golden: CheckGolden) -> None:
    access = a_model_access(
        "scene",
        routes=[
            {
                "name": "home",
                "timeout": "100ms",
                "pipeline": {
                    "features": "user-features",
                    "models": [
                        {"inference": "ctr", "as": "pctr"},
                        {
                            "access": "cvr",
                            "as": "pcvr",
                            "optional": True,
                            "timeout": "20ms",
                            "default": "0.01",
                        },
                    ],
                    "replicas": 2,
                    "resources": {"cpu": "500m", "memory": "512Mi"},
                },
            }
        ],
    )
    observed = PipelinesObserved(callees=some_callees())
    plan = plan_pipelines(access, observed, SETTINGS)

    assert plan.verdict is not None
    assert plan.verdict.reason is Reason.WAITING_FOR_REPLICAS
    check_golden(
        FOLDER / "pipeline.yaml",
        yaml.safe_dump_all([dict(manifest) for manifest in plan.apply], sort_keys=False, width=120),
    )
