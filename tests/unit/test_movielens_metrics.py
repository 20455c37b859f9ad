"""The AUC of the recipe and of the demo, against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from movielens_din.metrics import area_under_curve as auc_of_recipe
from tidegate_localcluster.demo.scoring import area_under_curve as auc_of_demo


def by_definition(labels: list[bool], scores: list[float]) -> float:
    pairs = [
        (positive > negative) + 0.5 * (positive == negative)
        for positive, is_positive in zip(scores, labels, strict=True)
        if is_positive
        for negative, is_other in zip(scores, labels, strict=True)
        if not is_other
    ]
    return sum(pairs) / len(pairs)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40).filter(
        lambda rows: 0 < sum(label for label, _ in rows) < len(rows)
    )
)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[bool, int]]) -> None:
    labels, scores = [label for label, _ in rows], [score / 5 for _, score in rows]
    expected = by_definition(labels, scores)
    as_arrays = np.array(labels, dtype=np.float32), np.array(scores, dtype=np.float32)
    assert auc_of_recipe(*as_arrays) == pytest.approx(expected)
    assert auc_of_demo(*as_arrays) == pytest.approx(expected)


def test_one_class_alone_has_no_auc() -> None:
    with pytest.raises(ValueError, match="3 positive and 0 negative"):
        auc_of_recipe(np.ones(3), np.arange(3))
