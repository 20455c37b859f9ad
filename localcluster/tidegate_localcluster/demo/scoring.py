"""Score held-out rows through the gateway, as a ranking service would, and compare with offline scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow.parquet as parquet  # type: ignore[import-untyped]  # publishes no types
import tritonclient.grpc as triton  # type: ignore[import-untyped]  # publishes no types
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # type: ignore[import-untyped]  # publishes no types

from tidegate_localcluster.demo.errors import DemoError

REQUEST_TIMEOUT_S: Final = 10.0
ROWS_PER_REQUEST: Final = 256
"""The most rows that the example's Inference accepts in one request."""
TOLERANCE: Final = 1e-6
AUC_TOLERANCE: Final = 1e-6
SCORE: Final = "score"

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class HeldOutRows:
    """Ratings later than all training, with the offline scores of each version.

    user_ids, item_ids and moments are int64 [rows, 1], labels float32 [rows], scores float32 [rows] by version.
    """

    user_ids: NDArray[np.int64]
    item_ids: NDArray[np.int64]
    moments: NDArray[np.int64]
    """Milliseconds since 1970, just before each rating: the scores are of the features of then."""
    labels: NDArray[np.float32]
    scores: Mapping[str, NDArray[np.float32]]

    @classmethod
    def read_parquet(cls, path: Path) -> "HeldOutRows":
        """Read the recipe's Parquet file."""
        table = parquet.read_table(path)
        columns = {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}
        return cls(
            user_ids=columns["user_id"].astype(np.int64)[:, None],
            item_ids=columns["item_id"].astype(np.int64)[:, None],
            moments=columns["as_of"].astype(np.int64)[:, None],
            labels=columns["label"].astype(np.float32),
            scores={
                name.removeprefix("score_v"): values.astype(np.float32)
                for name, values in columns.items()
                if name.startswith("score_v")
            },
        )

    def make_inputs(self, shift_ms: int) -> Tensors:
        """Return the request for the features of all rows, from events that happened `shift_ms` later than the ratings."""
        return {"user_id": self.user_ids, "item_id": self.item_ids, "as_of": self.moments + shift_ms}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """Scores, float32 [rows], and the version that computed them."""

    scores: NDArray[np.float32]
    version: str


@dataclass(frozen=True, slots=True)
class OnlineScores:
    """The cluster's scores of all held-out rows, float32 [rows], compared with the offline scores."""

    scores: NDArray[np.float32]
    versions: frozenset[str]
    requests: int
    auc_online: float
    auc_offline: float
    max_abs_difference: float


class GatewayClient:
    """A gRPC client of the gateway that addresses a ModelAccess or a FeatureCompute by header."""

    def __init__(self, address: str, namespace: str) -> None:
        """Connect to `address` (host:port) on the first request; names are in `namespace`."""
        self._client = triton.InferenceServerClient(address)
        self._namespace = namespace

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def fetch_features(self, name: str, inputs: Tensors) -> Tensors:
        """Return all outputs of the FeatureCompute `name`. Raises InferenceServerException."""
        return _read_outputs(self._send_request(name, inputs, "x-tidegate-features", name))

    def score(self, access: str, model: str, inputs: Tensors) -> ScoredAnswer:
        """Return the answer of the ModelAccess `access` for `model`. Raises InferenceServerException."""
        result = self._send_request(model, inputs, "x-tidegate-access", access)
        scores = np.asarray(result.as_numpy(SCORE), dtype=np.float32).ravel()
        return ScoredAnswer(scores, str(cast(Any, result.get_response()).model_version))

    def _send_request(self, model: str, inputs: Tensors, header: str, target: str) -> triton.InferResult:
        headers = {header: f"{self._namespace}/{target}"}
        tensors = [_make_input(name, values) for name, values in inputs.items()]
        result = self._client.infer(model, tensors, headers=headers, client_timeout=REQUEST_TIMEOUT_S)
        return cast(triton.InferResult, result)


def compute_features(gateway: GatewayClient, name: str, inputs: Tensors) -> Tensors:
    """Return the model's inputs for all rows of `inputs`, from the FeatureCompute. Raises DemoError."""
    parts: list[Tensors] = []
    for start, batch in _split_rows(inputs):
        try:
            parts.append(gateway.fetch_features(name, batch))
        except InferenceServerException as error:
            raise DemoError(f"FeatureCompute {name}, rows {start} and on: {error}") from error
    return {tensor: np.concatenate([part[tensor] for part in parts]) for tensor in parts[0]}


def score_features(
    gateway: GatewayClient, access: str, model: str, features: Tensors
) -> Sequence[ScoredAnswer]:
    """Score all rows through the ModelAccess, and return the answers in their order. Raises DemoError."""
    answers: list[ScoredAnswer] = []
    for start, batch in _split_rows(features):
        try:
            answers.append(gateway.score(access, model, batch))
        except InferenceServerException as error:
            raise DemoError(f"ModelAccess {access}, rows {start} and on: {error}") from error
    return answers


def score_online(
    gateway: GatewayClient, access: str, model: str, features: Tensors, rows: HeldOutRows, version: str
) -> OnlineScores:
    """Score all rows through the ModelAccess and compare them with the offline scores of `version`.

    Raises DemoError if a request fails, another version answers, a score differs by more than TOLERANCE, or the AUC by more than
    AUC_TOLERANCE.
    """
    answers = score_features(gateway, access, model, features)
    scores = np.concatenate([answer.scores for answer in answers])
    offline = rows.scores[version]
    result = OnlineScores(
        scores=scores,
        versions=frozenset(answer.version for answer in answers),
        requests=len(answers),
        auc_online=area_under_curve(rows.labels, scores),
        auc_offline=area_under_curve(rows.labels, offline),
        max_abs_difference=float(np.abs(scores - offline).max()),
    )
    if set(result.versions) != {version}:
        raise DemoError(
            f"ModelAccess {access}: version {version} was asked for, {sorted(result.versions)} answered"
        )
    if not result.max_abs_difference <= TOLERANCE:
        raise DemoError(
            f"ModelAccess {access}: online and offline scores differ by {result.max_abs_difference:.2e}, "
            f"more than {TOLERANCE:.0e}: features or model are not the ones that were trained"
        )
    if not abs(result.auc_online - result.auc_offline) <= AUC_TOLERANCE:
        raise DemoError(
            f"ModelAccess {access}: the AUC of version {version} is {result.auc_online:.8f} online and {result.auc_offline:.8f} "
            f"offline, although the scores differ by {result.max_abs_difference:.2e} at most: rows have another order"
        )
    return result


def format_auc(auc: float) -> str:
    """Return an AUC as the demo prints it, in six digits."""
    return f"{auc:.6f}"


def area_under_curve(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Return the ROC AUC; ties count half. Independent of the recipe's, so that the recipe is checked."""
    positive = labels > 0
    wins = int(positive.sum())
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    total = float(middle[place][positive].sum())
    return (total - wins * (wins + 1) / 2) / (wins * (len(labels) - wins))


def _split_rows(tensors: Tensors) -> Iterator[tuple[int, Tensors]]:
    """Yield requests that the model accepts, each with the number of its first row."""
    for start in range(0, len(next(iter(tensors.values()))), ROWS_PER_REQUEST):
        yield start, {name: values[start : start + ROWS_PER_REQUEST] for name, values in tensors.items()}


def _make_input(name: str, values: NDArray[Any]) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    tensor.set_data_from_numpy(values)
    return tensor


def _read_outputs(result: triton.InferResult) -> Tensors:
    names = [str(output.name) for output in cast(Any, result.get_response()).outputs]
    return {name: np.asarray(result.as_numpy(name)) for name in names}
