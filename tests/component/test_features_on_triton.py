"""Feature plans, fetched by the agent and computed inside a real Triton."""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from builders.features import (
    ITEM_KEY,
    USER_KEY,
    Bucketize,
    Cross,
    Hash,
    Lookup,
    LookupType,
    a_plan,
    of_item,
    of_user,
    write_table,
)
from builders.waiting import LONGEST_S, wait_until
from fixtures.agent import ModelPod
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    BatchingMode,
    DesiredState,
    FailureReason,
    FeaturePlan,
    FeatureTable,
    ModelFormat,
    OwnerKind,
)
from tidegate_dataplane.features.offline import make_engine

pytestmark = [pytest.mark.triton]

FEATURES = (
    Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1"),
    Lookup(name="history", field=of_user("history"), type=LookupType.INT64, length=4),
    Lookup(name="price", field=of_item("price"), type=LookupType.FLOAT32),
    Bucketize(name="age_bucket", field=of_user("age"), boundaries=(18, 35, 50)),
    Hash(name="item_hash", field=ITEM_KEY, buckets=1000),
    Cross(name="user_x_item", fields=(USER_KEY, ITEM_KEY), buckets=1_000_000),
)


@pytest.fixture
def plan(shared_pod: ModelPod) -> FeaturePlan:
    """A plan over two tables that are published in the pod's models folder."""
    users = write_table(
        shared_pod.models / "users.parquet",
        user_id=list(range(100)),
        age=[key % 70 for key in range(100)],
        history=[list(range(key % 6)) for key in range(100)],
    )
    items = write_table(
        shared_pod.models / "items.parquet",
        item_id=[f"item-{key}" for key in range(30)],
        price=[key / 4 for key in range(30)],
    )
    tables = tuple(
        FeatureTable(
            name=name,
            entity=entity,
            uri=f"file://{path}",
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for name, entity, path in (("profiles", "user", users), ("catalogue", "item", items))
    )
    return a_plan(*FEATURES, tables=tables)


def order(pod: ModelPod, plan: FeaturePlan, **changes: object) -> DesiredState:
    fields: dict[str, object] = {
        "owner": "ads/user-features",
        "kind": OwnerKind.FEATURE_COMPUTE,
        "model": "user-features",
        "format": ModelFormat.FEATURES,
        "uri": "",
        "plan": plan,
        **changes,
    }
    return pod.order(**fields)


def ready(report: AgentReport) -> bool:
    return report.phase is AgentPhase.READY


def failed(report: AgentReport) -> bool:
    return report.phase is AgentPhase.FAILED


def asked(users: np.ndarray, items: np.ndarray) -> list[triton_grpc.InferInput]:
    tensors = [
        triton_grpc.InferInput("user_id", [len(users), 1], "INT64"),
        triton_grpc.InferInput("item_id", [len(items), 1], "BYTES"),
    ]
    tensors[0].set_data_from_numpy(users.reshape(-1, 1))
    tensors[1].set_data_from_numpy(items.reshape(-1, 1))
    return tensors


def test_online_equals_offline(shared_pod: ModelPod, plan: FeaturePlan) -> None:
    shared_pod.put(order(shared_pod, plan))
    report = shared_pod.wait_for("the features serve", ready)
    users = np.arange(-5, 105, dtype=np.int64)
    items = np.array([f"item-{key}".encode() for key in range(110)], dtype=object)

    with triton_grpc.InferenceServerClient(shared_pod.triton.grpc) as client:
        answer = client.infer("user-features", asked(users, items))

    paths = {
        name: shared_pod.models / f"{file}.parquet"
        for name, file in (("profiles", "users"), ("catalogue", "items"))
    }
    for name, values in (
        make_engine(plan, paths, {}).compute_features({"user_id": users, "item_id": items}).items()
    ):
        np.testing.assert_array_equal(answer.as_numpy(name), values)
        assert answer.as_numpy(name).dtype == values.dtype
    assert {tensor.name: tensor.shape for tensor in report.outputs} == {
        output.name: output.shape for output in plan.outputs
    }
    assert [tensor.dtype for tensor in report.inputs] == ["INT64", "BYTES"]


def test_requests_that_are_joined_get_their_own_rows(shared_pod: ModelPod, plan: FeaturePlan) -> None:
    shared_pod.put(order(shared_pod, plan, batching=BatchingMode.FIXED, max_queue_delay_us=50_000))
    shared_pod.wait_for("the features serve", ready)

    requests = [np.arange(first, first + first % 5 + 1, dtype=np.int64) for first in range(0, 60, 3)]
    answers: list[object] = [None] * len(requests)
    done = [threading.Event() for _ in requests]
    with triton_grpc.InferenceServerClient(shared_pod.triton.grpc) as client:
        for place, users in enumerate(requests):

            def answered(result: object, error: object, place: int = place) -> None:
                answers[place] = error or result.as_numpy("age").ravel().tolist()  # type: ignore[attr-defined]
                done[place].set()

            items = np.array([b"item-1"] * len(users), dtype=object)
            client.async_infer("user-features", asked(users, items), callback=answered)
        assert all(event.wait(LONGEST_S) for event in done)
        executions = _executions_of(client, rows=sum(len(users) for users in requests))

    assert answers == [(users % 70).tolist() for users in requests]
    assert executions < len(requests)


def _executions_of(client: triton_grpc.InferenceServerClient, rows: int) -> int:
    """Executions so far, once they are about this many rows: Triton answers first and counts afterwards."""
    found: dict[str, str] = {}

    def counted() -> bool:
        (stats,) = client.get_inference_statistics("user-features", as_json=True)["model_stats"]
        found.update(stats)
        return int(stats.get("inference_count", 0)) >= rows

    wait_until(counted, what=f"Triton has counted {rows} rows")
    return int(found["execution_count"])


def test_a_table_that_does_not_fit_is_named(shared_pod: ModelPod, plan: FeaturePlan) -> None:
    path = write_table(shared_pod.models / "twice.parquet", user_id=[1, 1], age=[1, 2], history=[[1], [2]])
    tables = (plan.tables[0].model_copy(update={"uri": f"file://{path}", "sha256": None}), plan.tables[1])
    shared_pod.put(order(shared_pod, plan.model_copy(update={"tables": tables})))

    report = shared_pod.wait_for("the table is refused", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.ARTEFACT_INVALID
    assert "table 'profiles' has 1 keys in more than one row, such as 1" in report.failure.message


def test_a_table_with_another_checksum_is_named(shared_pod: ModelPod, plan: FeaturePlan) -> None:
    tables = (plan.tables[0].model_copy(update={"sha256": "0" * 64}), plan.tables[1])
    shared_pod.put(order(shared_pod, plan.model_copy(update={"tables": tables})))

    report = shared_pod.wait_for("the table is refused", failed)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.CHECKSUM_MISMATCH
    assert "table 'profiles'" in report.failure.message
