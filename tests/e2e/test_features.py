"""FeatureCompute on real pods: the same numbers as offline, new plans without a lost request, and clear failures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builders.waiting import wait_until
from fixtures.installed import PAUSE_S, Space
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.scoring import GatewayClient

USERS = 200


def _publish_users(space: Space) -> None:
    folder = space.folder("tables")
    folder.mkdir(parents=True, exist_ok=True)
    ages = [18 + user % 60 for user in range(USERS)]
    table = pa.table(
        {"user_id": list(range(USERS)), "age": ages, "history": [[u, u + 1] for u in range(USERS)]}
    )
    # As object stores do: there is the whole table or none, also for whoever asks every few seconds.
    pq.write_table(table, folder / ".users.parquet")
    (folder / ".users.parquet").rename(folder / "users.parquet")


def _spec(space: Space, boundaries: list[int], table: str = "users.parquet") -> Mapping[str, Any]:
    return {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": f"{space.uri('tables')}/{table}"}}
        ],
        "features": [
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-1"}},
            {"name": "age_bucket", "bucketize": {"field": "profiles.age", "boundaries": boundaries}},
            {"name": "history", "lookup": {"field": "profiles.history", "type": "int64", "length": 3}},
            {"name": "user_bucket", "hash": {"field": "user.user_id", "buckets": 16}},
        ],
        "resources": {"cpu": "50m", "memory": "512Mi"},
    }


def _ask(space: Space, users: list[int]) -> Mapping[str, NDArray[Any]]:
    gateway = GatewayClient(space.installed.endpoints.gateway, space.namespace)
    try:
        return gateway.fetch_features("users", {"user_id": np.array(users, dtype=np.int64)[:, None]})
    finally:
        gateway.close()


@pytest.mark.produces(Reason.SOURCE_FAILED)
def test_features_are_what_the_table_says_once_it_is_there_and_a_new_plan_leaves_no_gap(space: Space) -> None:
    space.apply("FeatureCompute", "users", _spec(space, [30, 50]))
    wait_until(
        lambda: space.condition("featurecompute", "users").get("reason") == Reason.SOURCE_FAILED,
        "Ready says SourceFailed",
        evidence=lambda: space.status("featurecompute", "users"),
    )
    assert "users.parquet" in space.condition("featurecompute", "users")["message"]
    # Nothing else is done.
    _publish_users(space)
    space.ready("featurecompute/users")

    found = _ask(space, [0, 40, 9_999])
    assert found["age"].tolist() == [[18], [58], [-1]]
    assert found["age_bucket"].tolist() == [[0], [2], [0]]
    assert found["history"].shape == (3, 3)
    assert found["history"].tolist()[2] == [0, 0, 0]
    assert int(found["user_bucket"].min()) >= 0
    assert int(found["user_bucket"].max()) < 16
    _a_wrong_key_is_refused(space)
    before = space.status("featurecompute", "users")["planHash"]

    constant = {**_ask(space, [40]), "age": np.array([[58]]), "history": np.array([[40, 41, 0]])}
    errors: list[str] = []
    wrong: list[Mapping[str, NDArray[Any]]] = []
    buckets: set[int] = set()
    done = threading.Event()

    def keep_asking() -> None:
        while not done.wait(PAUSE_S):
            try:
                answer = _ask(space, [40])
            except InferenceServerException as error:
                errors.append(str(error))
                continue
            # The new plan changes this feature alone.
            bucket = int(answer["age_bucket"][0, 0])
            buckets.add(bucket)
            expected = {**constant, "age_bucket": np.array([[bucket]])}
            same = (np.array_equal(answer[name], values) for name, values in expected.items())
            if answer.keys() != expected.keys() or not all(same):
                wrong.append(answer)

    asking = threading.Thread(target=keep_asking, daemon=True)
    asking.start()
    try:
        wait_until(lambda: buckets, "the first plan answers", evidence=lambda: errors)
        space.apply("FeatureCompute", "users", _spec(space, [30, 40, 50]))
        wait_until(lambda: space.status("featurecompute", "users")["planHash"] != before, "a new plan")
        space.ready("featurecompute/users")
        wait_until(lambda: 3 in buckets, "the new plan answers")
    finally:
        done.set()
        asking.join(20)

    assert errors == []
    assert wrong == []
    assert buckets == {2, 3}


def _a_wrong_key_is_refused(space: Space) -> None:
    wrong = triton.InferInput("user_id", [1, 1], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 1), dtype=np.float32))
    headers = {"x-tidegate-features": f"{space.namespace}/users"}
    with (
        triton.InferenceServerClient(space.installed.endpoints.gateway) as client,
        pytest.raises(InferenceServerException, match="user_id"),
    ):
        client.infer("users", [wrong], headers=headers)
    assert _ask(space, [2])["age"].tolist() == [[20]]
