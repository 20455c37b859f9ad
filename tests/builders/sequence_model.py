"""An ONNX model over histories of any length, whose padding is id 0, and variants of it whose requests cannot be joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from builders.onnx_models import write_artefact

ENTRIES: Final = 100
WIDTH: Final = 16


class Pooling(StrEnum):
    """How a row's history becomes a vector."""

    MASKED_SUM = "MaskedSum"
    """Id 0 counts nothing, so that padding does not change the answer."""
    MEAN = "Mean"
    """Every position counts, so that padding does."""
    SHARE_OF_BATCH = "ShareOfBatch"
    """A row's score is its share of the scores of all rows, so that other rows change the answer."""


def publish_sequences(
    folder: Path, version: int, *, pooling: Pooling = Pooling.MASKED_SUM, rows: int | str = "rows"
) -> None:
    """Write `<folder>/<version>/model.onnx`: history int64 [rows, length] → score float32 [rows]."""
    constants = {"table": _make_table(version), "axis": np.array([1], np.int64)}
    nodes = [
        helper.make_node("Gather", ["table", "history"], ["embedded"]),
        helper.make_node(
            "ReduceMean" if pooling is Pooling.MEAN else "ReduceSum",
            ["embedded"] if pooling is Pooling.MEAN else ["embedded", "axis"],
            ["pooled"],
            keepdims=0,
            **({"axes": [1]} if pooling is Pooling.MEAN else {}),
        ),
        helper.make_node("ReduceSum", ["pooled", "axis"], ["total"], keepdims=0),
    ]
    if pooling is Pooling.SHARE_OF_BATCH:
        nodes.append(helper.make_node("Softmax", ["total"], ["score"], axis=0))
    else:
        nodes.append(helper.make_node("Identity", ["total"], ["score"]))
    graph = helper.make_graph(
        nodes,
        "sequences",
        [helper.make_tensor_value_info("history", TensorProto.INT64, [rows, "length"])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, [rows])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    write_artefact(folder, version, model)


def score_histories(
    history: NDArray[np.int64], version: int, *, pooling: Pooling = Pooling.MASKED_SUM
) -> NDArray[np.float64]:
    """Return what a version answers to a request alone, history int64 [rows, length], as float64 [rows]."""
    embedded = _make_table(version).astype(np.float64)[history]
    pooled = embedded.mean(axis=1) if pooling is Pooling.MEAN else embedded.sum(axis=1)
    total = pooled.sum(axis=1)
    if pooling is not Pooling.SHARE_OF_BATCH:
        return total
    powers = np.exp(total - total.max())
    return powers / powers.sum()


def find_wrong_answers(
    address: str,
    model: str,
    requests: Sequence[NDArray[np.int64]],
    *,
    pooling: Pooling,
    clients: int,
    headers: Mapping[str, str] | None = None,
) -> list[str]:
    """Send histories from so many clients at once; return each answer that is not the one of the request alone."""

    def send_share(client_number: int) -> list[str]:
        wrong: list[str] = []
        with triton_grpc.InferenceServerClient(address) as client:
            for history in requests[client_number::clients]:
                tensor = triton_grpc.InferInput("history", list(history.shape), "INT64")
                tensor.set_data_from_numpy(history)
                scores = client.infer(model, [tensor], headers=headers).as_numpy("score").reshape(-1)
                expected = score_histories(history, 1, pooling=pooling)
                if scores.shape != expected.shape or not np.allclose(scores, expected, rtol=1e-4, atol=1e-4):
                    wrong.append(f"{history.shape}: {scores} instead of {expected}")
        return wrong

    with ThreadPoolExecutor(clients) as threads:
        return [line for lines in threads.map(send_share, range(clients)) for line in lines]


def _make_table(version: int) -> NDArray[np.float32]:
    table = np.random.default_rng(version).normal(size=(ENTRIES, WIDTH)).astype(np.float32) / 8
    table[0] = 0
    return table
