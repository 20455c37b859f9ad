"""The demo's scoring: what counts as equal to offline, and what is an error."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from tidegate_localcluster.demo import scoring
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.scoring import (
    GatewayClient,
    HeldOutRows,
    ScoredAnswer,
    Tensors,
    compute_features,
    score_online,
)

ROWS = 600
SHIFT_MS = 7


def held_out() -> HeldOutRows:
    generator = np.random.default_rng(1)
    scores = generator.random(ROWS, dtype=np.float32)
    return HeldOutRows(
        user_ids=np.arange(ROWS, dtype=np.int64)[:, None],
        item_ids=np.arange(ROWS, dtype=np.int64)[:, None],
        moments=1_000 * np.arange(ROWS, dtype=np.int64)[:, None],
        labels=(generator.random(ROWS) < scores).astype(np.float32),
        scores={"1": scores, "2": 1 - scores},
    )


class FakeGateway:
    """A cluster that scores each row as `rows` says for `version`, and `off` beside it: of all rows, or [ROWS]."""

    def __init__(
        self,
        rows: HeldOutRows,
        *,
        version: str = "1",
        off: float | NDArray[np.float32] = 0.0,
        fail_from: int = ROWS,
    ) -> None:
        self._rows, self._version, self._fail_from = rows, version, fail_from
        self._off = np.broadcast_to(np.asarray(off, dtype=np.float32), ROWS)
        self.sizes: list[int] = []

    def fetch_features(self, name: str, inputs: Tensors) -> Tensors:
        np.testing.assert_array_equal(inputs["as_of"], 1_000 * inputs["user_id"] + SHIFT_MS)
        return {"row": inputs["user_id"]}

    def score(self, access: str, model: str, inputs: Tensors) -> ScoredAnswer:
        rows = inputs["row"].ravel()
        self.sizes.append(len(rows))
        if rows[-1] >= self._fail_from:
            raise InferenceServerException("upstream connect error")
        return ScoredAnswer(self._rows.scores["1"][rows] + self._off[rows], self._version)


def scored(gateway: FakeGateway, rows: HeldOutRows, version: str = "1") -> Any:
    cluster = cast(GatewayClient, gateway)
    features = compute_features(cluster, "features", rows.make_inputs(SHIFT_MS))
    return score_online(cluster, "access", "model", features, rows, version)


def test_every_row_is_asked_once_in_requests_the_model_accepts() -> None:
    rows = held_out()
    gateway = FakeGateway(rows)
    found = scored(gateway, rows)
    assert gateway.sizes == [256, 256, 88]
    assert found.max_abs_difference == 0.0
    assert found.auc_online == found.auc_offline > 0.5


def test_rounding_is_equal_and_more_is_not() -> None:
    rows = held_out()
    assert scored(FakeGateway(rows, off=2e-7), rows).max_abs_difference < 1e-6
    with pytest.raises(DemoError, match=r"differ by 1\.0\de-05, more than 1e-06"):
        scored(FakeGateway(rows, off=1e-5), rows)


def test_an_auc_that_is_another_online_is_an_error_however_near_the_scores_are() -> None:
    labels = held_out().labels
    level = replace(held_out(), scores={"1": np.full(ROWS, 0.5, dtype=np.float32)})
    found = scored(FakeGateway(level, off=2e-7), level)
    assert (found.auc_online, found.auc_offline) == (0.5, 0.5)
    with pytest.raises(DemoError, match=r"the AUC of version 1 is 1\.0{8} online and 0\.50{7} offline"):
        scored(FakeGateway(level, off=np.float32(2e-7) * labels), level)


def scored_with_aucs(monkeypatch: pytest.MonkeyPatch, online: float, offline: float) -> Any:
    """Score equal rows, whose AUCs come out as `online` and `offline`."""
    aucs = iter((online, offline))
    monkeypatch.setattr(scoring, "area_under_curve", lambda _labels, _scores: next(aucs))
    rows = held_out()
    return scored(FakeGateway(rows), rows)


def test_an_auc_that_rounds_to_another_digit_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scored_with_aucs(monkeypatch, 0.7384995001, 0.7384994999)
    assert (found.auc_online, found.auc_offline) == (0.7384995001, 0.7384994999)
    with pytest.raises(DemoError, match=r"is 0\.73850100 online and 0\.73849950 offline"):
        scored_with_aucs(monkeypatch, 0.738501, 0.7384995)
    with pytest.raises(DemoError, match="rows have another order"):
        scored_with_aucs(monkeypatch, float("nan"), 0.7384995)


def test_scores_that_are_no_numbers_are_not_equal() -> None:
    rows = held_out()
    with pytest.raises(DemoError, match="differ by nan"):
        scored(FakeGateway(rows, off=float("nan")), rows)


def test_another_version_than_asked_for_is_an_error() -> None:
    rows = held_out()
    with pytest.raises(DemoError, match=r"version 2 was asked for, \['1'\] answered"):
        scored(FakeGateway(rows), rows, version="2")


def test_a_failed_request_names_the_object_and_the_rows() -> None:
    rows = held_out()
    with pytest.raises(DemoError, match="ModelAccess access, rows 256 and on: upstream connect error"):
        scored(FakeGateway(rows, fail_from=300), rows)
