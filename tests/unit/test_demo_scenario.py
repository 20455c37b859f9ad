"""The requests that the demo's load sends."""

import numpy as np

from tidegate_localcluster.demo.scenario import ROWS_UNDER_LOAD, make_batches
from tidegate_localcluster.demo.scoring import HeldOutRows


def test_batches_carry_the_right_answers_of_every_version() -> None:
    rows = 3 * ROWS_UNDER_LOAD + 5
    numbers = np.arange(rows)
    held_out = HeldOutRows(
        user_ids=numbers[:, None],
        item_ids=numbers[:, None],
        moments=numbers[:, None],
        labels=np.zeros(rows, dtype=np.float32),
        scores={"1": numbers.astype(np.float32), "2": -numbers.astype(np.float32)},
    )
    batches = make_batches({"row": numbers[:, None]}, held_out)
    assert len(batches) == 3
    for batch in batches:
        np.testing.assert_array_equal(batch.inputs["row"].ravel(), batch.expected["1"])
        np.testing.assert_array_equal(batch.expected["2"], -batch.expected["1"])
