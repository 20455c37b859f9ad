"""Optimize a model: try each pass, keep those that prove equal and pay, and report what was done and why not the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Final, TypeAlias

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, IdentityEliminationPass
from onnxscript import optimizer

from tidegate_dataplane.graph_passes.fuse_embeddings import fuse_embeddings
from tidegate_dataplane.graph_passes.late_broadcasts import drop_repetitions
from tidegate_dataplane.graph_passes.payoff import (
    MIN_SHARED_ROWS,
    ClientSpeedup,
    choose_requests,
    count_rows,
    explain_slowness,
    explain_unshared_slowness,
    has_equal_rows,
)
from tidegate_dataplane.graph_passes.proof import (
    Comparison,
    GraphRefusedError,
    Session,
    compare_answers,
    compare_logged,
    mean_speedup,
    measure_speedups,
)
from tidegate_dataplane.graph_passes.rewriting import finish_rewrite
from tidegate_dataplane.graph_passes.samples import (
    Request,
    has_finite_numbers,
    make_edge_requests,
    make_requests,
    repeat_shared,
    share_inputs,
)
from tidegate_dataplane.graph_passes.shape_arithmetic import state_shapes
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes
from tidegate_dataplane.graph_passes.share_rows import ShareRowsError, find_shared_inputs, share_rows
from tidegate_dataplane.graph_passes.split_products import split_products

MIN_OPSET: Final = 14
TOLERANCE: Final = 1e-5
"""Largest error of a pass that adds in another order, as a share of the output's largest number."""
POOLING_TOLERANCE: Final = 1e-6
"""ONNX Runtime adds the rows of a list in another order if there are many; without sums, answers are equal bit for bit."""
MEASURED_ROWS: Final = (1, 16, 128)
MEASURED_SIZES: Final = (50, 7, 1)
"""Of dimensions that the graph leaves to the request, such as the length of a history: the first that it answers."""


Rewrite: TypeAlias = Callable[[ir.Model], int]
"""Rewrites the model in place, and returns how many places it changed."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of a graph."""

    name: str
    variants: tuple[Rewrite, ...]
    """Alternative rewrites; the fastest is kept."""
    tolerance: float
    """0.0 for a pass whose answers are equal bit for bit."""
    shared_inputs: tuple[str, ...] = ()
    """Inputs that may have one row once it is applied."""


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What became of one pass on one model."""

    name: str
    applied: bool
    reason: str
    """Why it was left out; empty if it was applied."""
    changes: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    max_error: float = 0.0
    speedups: Mapping[int, float] = field(default_factory=dict[int, float])
    """Of random requests, by their rows."""
    client_speedups: tuple[ClientSpeedup, ...] = ()

    @property
    def mean_speedup(self) -> float:
        """Return the geometric mean of all speed-ups; 1.0 without any."""
        return mean_speedup([*self.speedups.values(), *(client.ratio for client in self.client_speedups)])

    @property
    def finite_error(self) -> float | None:
        """Return the error as a number that JSON has; None if an answer was missing."""
        return self.max_error if isfinite(self.max_error) else None


@dataclass(frozen=True, slots=True)
class OptimizedModel:
    """A model and how it came about."""

    model: onnx.ModelProto
    shared_inputs: tuple[str, ...]
    """Inputs that may have one row, where the others have as many as the request."""
    outcomes: tuple[PassOutcome, ...]
    speedups: Mapping[int, float]
    """Of the whole against the original, at random requests, by their rows."""
    client_speedups: tuple[ClientSpeedup, ...] = ()
    """The same at the most frequent shapes of clients' requests."""
    compared_requests: int = 0
    """Requests of clients that the model answers, and on which passes were compared."""


def simplify_graph(model: ir.Model) -> int:
    """Fold constants, state shapes, and drop repeated, unused and empty operations; return how many nodes are gone."""
    before = len(model.graph)
    optimizer.fold_constants(model)
    # A shape that is known makes others known.
    while state_shapes(model):
        optimizer.fold_constants(model)
    IdentityEliminationPass()(model)
    CommonSubexpressionEliminationPass()(model)
    finish_rewrite(model)
    return before - len(model.graph)


_FIRST_PASSES: Final = (
    Pass("simplify", (simplify_graph,), 0.0),
    Pass("splitProducts", (split_products,), TOLERANCE),
    Pass("dropRepetitions", (drop_repetitions,), 0.0),
)
_FUSE_EMBEDDINGS: Final = Pass(
    "fuseEmbeddings",
    (
        lambda model: fuse_embeddings(model, columns_first=True).columns,
        lambda model: fuse_embeddings(model, columns_first=False).columns,
    ),
    POOLING_TOLERANCE,
)
PASSES: Final = (*_FIRST_PASSES, _FUSE_EMBEDDINGS)


def list_passes(shared_inputs: Sequence[str] = ()) -> tuple[Pass, ...]:
    """Return all passes, with shareRows if inputs are shared.

    It comes after the attention's products were split, since only the parts tell what depends on the user alone; and before
    columns of users and items are fused into one.
    """
    if not shared_inputs:
        return PASSES
    names = tuple(shared_inputs)
    share = Pass("shareRows", (lambda model: share_rows(model, names),), TOLERANCE, names)
    return (*_FIRST_PASSES, share, _FUSE_EMBEDDINGS)


def optimize_model(
    model: onnx.ModelProto,
    requests: Sequence[Request] = (),
    *,
    shared_inputs: Sequence[str] = (),
    passes: Sequence[Pass] | None = None,
    measured_rows: Sequence[int] = MEASURED_ROWS,
) -> OptimizedModel:
    """Apply the passes that prove equal and pay, all without `passes`.

    `requests` of clients are compared beside random ones, and the most frequent of their shapes are measured as well.
    `shared_inputs` have equal rows in most requests, such as the features of the user: if the part of the graph that depends
    on them alone can run once per request, the optimized model also takes one row of them. The given model is not changed.
    Raise GraphRefusedError if ONNX Runtime does not load it.
    """
    trial = _Trial(model, _select_logged(requests, shared_inputs), measured_rows)
    for graph_pass in list_passes(shared_inputs) if passes is None else passes:
        trial.try_pass(graph_pass)
    return OptimizedModel(
        trial.model,
        trial.shared_inputs,
        tuple(trial.outcomes),
        *trial.measure_whole(),
        compared_requests=trial.answered_requests,
    )


def compare_models(original: onnx.ModelProto, candidate: onnx.ModelProto) -> Comparison:
    """Compare the answers of two models with the same inputs on the requests that passes are proved with.

    Raise GraphRefusedError if ONNX Runtime does not load one of them.
    """
    sessions = Session(original), Session(candidate)
    samples = _make_samples(_read_model(original))
    return compare_answers(*sessions, _pair_forms(samples, (), find_shared_inputs(candidate)))


def compare_requests(
    original: onnx.ModelProto,
    candidate: onnx.ModelProto,
    requests: Sequence[Request],
    shared_inputs: Sequence[str] = (),
) -> Comparison:
    """Compare the answers of a served graph on requests of clients, in which `shared_inputs` may have one row.

    `answered` counts the requests that both answered. Raise GraphRefusedError if ONNX Runtime does not load one of the models.
    """
    shared = find_shared_inputs(candidate)
    logged = _select_logged(requests, shared_inputs)
    samples = list(make_requests(_read_model(original)))
    pairs = _pair_forms(logged, (), shared)
    comparison = compare_logged(Session(original), Session(candidate), pairs, samples)
    return replace(comparison, answered=comparison.answered * len(logged) // max(len(pairs), 1))


def _select_logged(requests: Sequence[Request], shared: Sequence[str]) -> list[Request]:
    """Return the requests of clients that can be compared, with as many rows of shared inputs as of the others."""
    return [repeat_shared(request, shared) for request in requests if has_finite_numbers(request)]


def _make_samples(model: ir.Model) -> list[Request]:
    return [*make_requests(model), *make_edge_requests(model)]


class _Trial:
    """The state of a model between passes."""

    def __init__(
        self, model: onnx.ModelProto, requests: Sequence[Request], measured_rows: Sequence[int]
    ) -> None:
        self.model = model
        self.shared_inputs = find_shared_inputs(model)
        self.outcomes: list[PassOutcome] = []
        self._original = self._session = Session(model)
        inferred = _read_model(model)
        self._logged = [request for request in requests if self._original.run_request(request) is not None]
        self._clients = choose_requests(self._logged)
        self._samples = _make_samples(inferred)
        self._measured_rows = measured_rows
        self._measured = self._make_measured(inferred)

    def _make_measured(self, model: ir.Model) -> list[Request]:
        """Return one request for each number of rows that is measured."""
        requests: list[Request] = []
        for size in MEASURED_SIZES:
            requests = list(make_requests(model, self._measured_rows, (size,)))
            if all(self._original.run_request(request) is not None for request in requests):
                break
        return requests

    def try_pass(self, graph_pass: Pass) -> None:
        """Try one pass, and keep its fastest variant that is equal to the original and not slower than before it."""
        shared = graph_pass.shared_inputs or self.shared_inputs
        results = [self._try_variant(graph_pass, rewrite, shared) for rewrite in graph_pass.variants]
        outcome, candidate, session = max(
            results, key=lambda result: (result[0].applied, result[0].mean_speedup)
        )
        self.outcomes.append(outcome)
        if outcome.applied:
            self.model, self._session, self.shared_inputs = candidate, session, shared

    def _try_variant(
        self, graph_pass: Pass, rewrite: Rewrite, shared: tuple[str, ...]
    ) -> tuple[PassOutcome, onnx.ModelProto, Session]:
        """Return what became of a variant, with its model; the model as it was if the variant is left out."""
        before = len(self.model.graph.node)
        outcome = PassOutcome(graph_pass.name, False, "", 0, before, before)
        try:
            candidate, changes = self._rewrite_copy(rewrite)
            outcome = replace(outcome, changes=changes)
            session = Session(candidate)
            comparison = self._compare_samples(self._session, self.shared_inputs, session, shared)
            outcome = replace(outcome, max_error=comparison.max_error)
            if not comparison.answered:
                raise _LeftOutError("no sample was answered, so nothing could be compared")
            _check_error(outcome.max_error, graph_pass.tolerance, "the graph before the pass")
            if self._session is not self._original:
                comparison = self._compare_samples(self._original, (), session, shared)
            _check_error(comparison.max_error, TOLERANCE, "the original")
            is_sharing = bool(graph_pass.shared_inputs)
            outcome = replace(outcome, speedups=self._measure_speedups(session, shared))
            _raise_reason(explain_slowness(outcome.speedups, shares_rows=is_sharing))
            clients = self._measure_clients(self._session, self.shared_inputs, session, shared)
            outcome = replace(outcome, client_speedups=clients)
            _raise_reason(explain_slowness(outcome.speedups, clients, shares_rows=is_sharing))
            self._check_unshared(session, shared)
        except _LeftOutError as reason:
            outcome = replace(outcome, reason=str(reason))
        except GraphRefusedError as error:
            outcome = replace(outcome, reason=f"the rewritten graph was refused: {error}")
        except (TypeError, ValueError) as error:
            outcome = replace(outcome, reason=f"answers cannot be compared or measured: {error}")
        else:
            applied = replace(outcome, applied=True, nodes_after=len(candidate.graph.node))
            return applied, candidate, session
        return outcome, self.model, self._session

    @property
    def answered_requests(self) -> int:
        """Return how many requests of clients the model answers."""
        return len(self._logged)

    def measure_whole(self) -> tuple[Mapping[int, float], tuple[ClientSpeedup, ...]]:
        """Return the speed-ups of all passes together, at random requests and at those of clients."""
        if not any(outcome.applied for outcome in self.outcomes):
            return {}, ()
        pairs = _pair_requests(self._measured, (), self.shared_inputs)
        ratios = measure_speedups(self._original, self._session, pairs)
        clients = self._measure_clients(self._original, (), self._session, self.shared_inputs)
        return dict(zip(self._measured_rows, ratios, strict=True)), clients

    def _rewrite_copy(self, rewrite: Rewrite) -> tuple[onnx.ModelProto, int]:
        opset = next(
            (entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 0
        )
        if opset < MIN_OPSET:
            raise _LeftOutError(f"the model has opset {opset}: export it with {MIN_OPSET} or later")
        rewritten = _read_model(self.model)
        try:
            changes = rewrite(rewritten)
            candidate = _write_model(rewritten, self.model)
        except ShareRowsError as error:
            raise _LeftOutError(str(error)) from error
        except MemoryError:
            raise
        except Exception as error:
            # A pass that breaks on a graph must not break its version.
            raise _LeftOutError(f"the pass failed: {error!r}") from error
        if not changes:
            raise _LeftOutError("nothing to change")
        return candidate, changes

    def _compare_samples(
        self, before: Session, shared_before: tuple[str, ...], after: Session, shared_after: tuple[str, ...]
    ) -> Comparison:
        """Compare on random requests and on those of clients; the number that both answered is that of the random ones."""
        random = compare_answers(before, after, _pair_forms(self._samples, shared_before, shared_after))
        if not self._logged:
            return random
        logged = _pair_forms(self._logged, shared_before, shared_after)
        clients = compare_logged(before, after, logged, self._measured)
        return Comparison(random.answered, max(random.max_error, clients.max_error))

    def _measure_speedups(self, session: Session, shared: tuple[str, ...]) -> Mapping[int, float]:
        pairs = _pair_requests(self._measured, self.shared_inputs, shared)
        ratios = measure_speedups(self._session, session, pairs)
        return dict(zip(self._measured_rows, ratios, strict=True))

    def _measure_clients(
        self, before: Session, shared_before: tuple[str, ...], after: Session, shared_after: tuple[str, ...]
    ) -> tuple[ClientSpeedup, ...]:
        """Return the speed-ups at requests of clients; inputs whose rows differ there are not sent as one row."""
        measured: list[ClientSpeedup] = []
        for request in self._clients:
            rows, is_equal = count_rows(request), has_equal_rows(request, shared_after)
            pairs = (
                _pair_requests([request], shared_before, shared_after) if is_equal else [(request, request)]
            )
            [ratio] = measure_speedups(before, after, pairs)
            measured.append(ClientSpeedup(rows, ratio, can_share=is_equal and rows >= MIN_SHARED_ROWS))
        return tuple(measured)

    def _check_unshared(self, session: Session, shared: tuple[str, ...]) -> None:
        """Raise _LeftOutError if a graph that shares rows is too slow where they differ."""
        if shared:
            largest = self._measured[-1]
            [ratio] = measure_speedups(self._original, session, [(largest, largest)])
            _raise_reason(explain_unshared_slowness(ratio))


def _pair_requests(
    requests: Iterable[Request], before: tuple[str, ...], after: tuple[str, ...]
) -> list[tuple[Request, Request]]:
    """Return each request as it is for a graph that shares the inputs `before`, and for one that shares `after`."""
    pairs: list[tuple[Request, Request]] = []
    for request in requests:
        repeated, _ = share_inputs(request, after)
        pairs.append((share_inputs(repeated, before)[1], share_inputs(repeated, after)[1]))
    return pairs


def _pair_forms(
    requests: Sequence[Request], before: tuple[str, ...], after: tuple[str, ...]
) -> list[tuple[Request, Request]]:
    """Return pairs as above, with those of the other form as well that a graph which shares inputs takes: as many rows."""
    all_rows = [(request, request) for request in requests] if after else []
    return [*_pair_requests(requests, before, after), *all_rows]


class _LeftOutError(Exception):
    """Why a pass is not applied."""


def _read_model(model: onnx.ModelProto) -> ir.Model:
    read = ir.from_proto(model)
    infer_shapes(read)
    return read


def _write_model(model: ir.Model, original: onnx.ModelProto) -> onnx.ModelProto:
    """Return a rewritten model, without the shapes of values that the original leaves to ONNX Runtime.

    With more shapes, ONNX Runtime fuses more: a residual Add into the LayerNormalization of a transformer, for example,
    which takes 1.2 times as long on a CPU and rounds otherwise.
    """
    written = ir.to_proto(model)
    names = {value.name for value in original.graph.value_info}
    shapes = [value for value in written.graph.value_info if value.name in names]
    del written.graph.value_info[:]
    written.graph.value_info.extend(shapes)
    return written


def _raise_reason(reason: str) -> None:
    """Raise _LeftOutError if there is a reason."""
    if reason:
        raise _LeftOutError(reason)


def _check_error(error: float, allowed: float, other: str) -> None:
    if error > allowed:
        raise _LeftOutError(f"answers differ by {error:.1e} from those of {other}, {allowed:.0e} is allowed")
