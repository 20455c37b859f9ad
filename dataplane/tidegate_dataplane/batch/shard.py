"""Score one shard, from its first unwritten row to its last."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import structlog

from tidegate_dataplane.agent.nearline.model import ModelSignature, TritonModel
from tidegate_dataplane.batch.columns import (
    MappedInput,
    find_refused_rows,
    make_output_column,
    make_tensors,
    map_inputs,
    split_into_runs,
)
from tidegate_dataplane.batch.errors import MissingColumnError, ServerFaultError, TableError
from tidegate_dataplane.batch.feature_sources import FeatureSources
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.batch.parquet import (
    MAX_BATCH_ROWS,
    RowStream,
    Wait,
    measure_file,
    read_segment,
    select_table_files,
)
from tidegate_dataplane.batch.plan import RowSpan, TablePlan
from tidegate_dataplane.batch.results import ResultsFolder, ShardReport
from tidegate_dataplane.batch.row_features import (
    FeatureInputs,
    RowFeatures,
    RowsView,
    check_model_inputs,
    translate_errors,
)
from tidegate_dataplane.batch.scorer import BatchScorer, RowBatch, RowsOutcome
from tidegate_dataplane.batch.store import TableSource
from tidegate_dataplane.contract import BatchOrder

log = structlog.get_logger()

ROW_COLUMN, REASON_COLUMN = "tidegate_row", "tidegate_reason"
"""Columns of the files of refused rows, with FILE_COLUMN: the row's number in its file, and the reason."""
FILE_COLUMN = "tidegate_file"

_NO_MODEL = ModelSignature((), (), MAX_BATCH_ROWS)
"""A backfill has no model, so that its rows are no inputs of any."""


class ShardScorer:
    """Scores the unwritten rows of one shard. Every step is idempotent."""

    def __init__(
        self,
        order: BatchOrder,
        index: int,
        source: TableSource,
        results: ResultsFolder,
        model: TritonModel | None,
        metrics: BatchMetrics,
        wait: Wait,
        feature_sources: FeatureSources | None = None,
    ) -> None:
        """`feature_sources` are those of the order's features; without a model, rows get these alone."""
        self._order = order
        self._feature_sources = feature_sources
        self._index = index
        self._source = source
        self._results = results
        self._model = model
        self._scorer = BatchScorer(model, f"{order.run}-{index}") if model is not None else None
        self._metrics = metrics
        self._wait = wait

    def score_shard(self) -> ShardReport:
        """Score and write every part of the shard that has no file of results yet.

        Raises:
            TableError: the table, the model or the spec must change first.
            ArtefactError: the store failed; another attempt may succeed.
            ServerFaultError: the server refused too many rows; another server may not.
        """
        plan = self._load_plan()
        span = plan.shard_span(self._index)
        parts = list(span.split_parts(self._order.rows_per_file))
        written = self._results.find_written_parts(self._index, parts)
        remaining = parts[len(written) :]
        rows_written = sum(metadata.rows + metadata.refused for metadata in written)
        refused = sum(metadata.refused for metadata in written)
        self._metrics.shard_rows.set(span.end - span.start)
        self._metrics.rows_left.set(span.end - span.start - rows_written)
        self._metrics.rows_found.inc(rows_written)
        log.info(
            "shard_begins",
            shard=self._index,
            rows=span.end - span.start,
            found=rows_written,
            of=plan.row_count,
            run=plan.run,
        )
        self._check_refused(plan, (), refused)
        if remaining:
            refused += self._score_parts(plan, remaining, len(written), refused)
        rows = span.end - span.start
        report = ShardReport(shard=self._index, rows=rows - refused, refused=refused, files=len(parts))
        run_complete = self._results.finish_shard(report, plan.shards)
        log.info(
            "shard_done", shard=self._index, rows=report.rows, refused=refused, run_complete=run_complete
        )
        return report

    def _load_plan(self) -> TablePlan:
        current = self._results.read_plan()
        if current is None:
            paths = select_table_files(self._wait(self._source.list("")))
            if not paths:
                raise TableError(f"there is no .parquet file below {self._order.source}")
            uri = self._order.source
            files = tuple(measure_file(self._source, uri, path, self._wait) for path in paths)
            sources = self._feature_sources.list_files() if self._feature_sources is not None else {}
            plan = TablePlan(
                run=self._order.run, source=uri, shards=self._order.shards, files=files, sources=sources
            )
            current = self._results.create_plan(plan)
        if (current.run, current.source, current.shards) != (
            self._order.run,
            self._order.source,
            self._order.shards,
        ):
            raise TableError(
                f"the folder of run {self._order.run} is another run's: use another {self._order.spec_path}.output"
            )
        return current

    def _score_parts(self, plan: TablePlan, parts: Sequence[RowSpan], first: int, refused: int) -> int:
        """Score the parts from number `first` on; return how many of their rows were refused.

        `refused` rows of earlier parts count towards the limit.
        """
        span = RowSpan(parts[0].start, parts[-1].end)
        signature = self._load_signature()
        inputs, columns = self._map_columns(signature)
        features = self._load_features(plan, span)
        stream = RowStream(self._read_tables(plan, span, columns))
        added = 0
        for number, part in enumerate(parts, first):
            table, unfit = stream.take_rows(part.end - part.start), dict[int, str]()
            if features is not None:
                place = "{}, row {}".format(*plan.locate_row(part.start))
                table, unfit = features.add_features(table, f"{part.end - part.start} rows from {place} on")
            unfit = find_refused_rows(table, inputs) | unfit
            answers = self._score_rows(plan, part, table, inputs, signature.rows, unfit, refused + added)
            added += sum(bool(answer.refusal) for answer in answers)
            self._check_refused(plan, answers, refused + added)
            scored, refused_rows_table = self._make_tables(plan, part, table, answers, signature)
            if features is not None:
                scored = scored.replace_schema_metadata(features.describe_features(self._order.keep))
            self._results.write_part(self._index, number, part.start, scored, refused_rows_table)
            self._metrics.rows.inc(scored.num_rows)
            self._metrics.rows_refused.inc(refused_rows_table.num_rows)
            self._metrics.rows_left.dec(part.end - part.start)
            log.info("part_written", shard=self._index, part=number, rows=scored.num_rows)
        return added

    def _load_features(self, plan: TablePlan, span: RowSpan) -> RowFeatures | None:
        """Read what the features of these rows are computed from; None if the order has no features."""
        sources = self._feature_sources
        if sources is None:
            return None
        inputs = FeatureInputs(sources.features, self._columns_by_input)
        view = RowsView({})
        if sources.features.plan.streams:
            with translate_errors(self._order.source):
                view = inputs.view_rows(self._read_tables(plan, span, sorted(inputs.needed_columns)))
        return RowFeatures(inputs, sources.load_engine(plan.sources, view))

    @property
    def _columns_by_input(self) -> dict[str, str]:
        return {column.input: column.column for column in self._order.columns}

    def _map_columns(self, signature: ModelSignature) -> tuple[tuple[MappedInput, ...], list[str]]:
        """Return the column or feature of each input of the model, and the columns that are read from the table."""
        renamed, keep, order = self._columns_by_input, self._order.keep, self._order.features
        computed, needed = frozenset[str](), frozenset[str]()
        if order is not None:
            check_model_inputs(signature.inputs, keep, order)
            needed = FeatureInputs(order, renamed).needed_columns
            computed = frozenset(output.name for output in order.plan.outputs)
            features_alone = {spec.name for spec in order.plan.inputs} - {
                spec.name for spec in signature.inputs
            }
            renamed = {name: column for name, column in renamed.items() if name not in features_alone}
        inputs = map_inputs(signature.inputs, renamed)
        clashing = {spec.name for spec in signature.outputs} & set(keep)
        if clashing:
            raise TableError(
                f"column {min(clashing)!r} of {self._order.spec_path}.output.keep has the name of an output of the model: leave it out"
            )
        read = {*keep, *(model_input.column for model_input in inputs)} - computed
        return inputs, sorted(read | needed)

    def _load_signature(self) -> ModelSignature:
        if self._model is None or self._scorer is None:
            return _NO_MODEL
        self._wait(self._scorer.wait_until_ready())
        signature: ModelSignature = self._wait(self._model.get_signature())
        if signature.rows == 0:
            raise TableError(
                "the model takes no rows: its artefact has no batch dimension, the first of every input and output"
            )
        return signature

    def _read_tables(self, plan: TablePlan, span: RowSpan, columns: Sequence[str]) -> Iterator[Any]:
        for segment in plan.split_by_file(span):
            try:
                yield from read_segment(self._source, self._order.source, segment, columns, self._wait)
            except MissingColumnError as error:
                features = self._order.features
                if features is None:
                    raise
                raise TableError(
                    f"{error}; {error.column!r} is no feature of FeatureCompute {features.compute} either"
                ) from error

    def _score_rows(
        self,
        plan: TablePlan,
        part: RowSpan,
        table: Any,
        inputs: Sequence[MappedInput],
        max_rows: int,
        unfit: Mapping[int, str],
        refused: int,
    ) -> list[RowsOutcome]:
        """Return the answers for all rows of a part, in order; every pod cuts the same batches.

        `unfit` has the rows that cannot be converted to tensors, with the reason. Answers are missing if more rows are refused
        than the order allows, with the `refused` ones before.
        """
        batches = list[RowBatch]()
        edges = sorted({-1, *unfit, table.num_rows})
        for previous, following in itertools.pairwise(edges):
            fit_rows = table.slice(previous + 1, following - previous - 1)
            for first, count in split_into_runs(fit_rows, inputs) if fit_rows.num_rows else ():
                for start in range(first, first + count, max_rows):
                    rows = min(max_rows, first + count - start)
                    begins = part.start + previous + 1 + start
                    location = "{}, row {}".format(*plan.locate_row(begins))
                    batches.append(
                        RowBatch(begins, rows, make_tensors(fit_rows.slice(start, rows), inputs, location))
                    )
        spare = self._order.max_refused_rows - refused - len(unfit)
        answers: list[RowsOutcome]
        if self._scorer is None:
            answers = [RowsOutcome(batch.first_row, batch.rows, {}) for batch in batches]
        else:
            self._metrics.requests.inc(len(batches))
            answers = self._wait(self._scorer.score_batches(batches, spare))
        answers += [RowsOutcome(part.start + row, 1, {}, refusal=reason) for row, reason in unfit.items()]
        return sorted(answers, key=lambda answer: answer.first_row)

    def _check_refused(self, plan: TablePlan, answers: Sequence[RowsOutcome], refused: int) -> None:
        max_refused, limit = self._order.max_refused_rows, f"{self._order.spec_path}.maxRefusedRows"
        if refused <= max_refused:
            return
        refusals = [answer for answer in answers if answer.refusal]
        if not refusals:
            raise TableError(
                f"shard {self._index} has {refused} refused rows already, and {limit} is {max_refused}: raise "
                "it, or find the rows in the run's folder _refused, fix the table, and start a new run"
            )
        last = refusals[-1]
        path, row = plan.locate_row(last.first_row)
        message = f"row {row} of {self._order.source.rstrip('/')}/{path} is refused: {last.refusal}"
        if refused - sum(answer.may_be_server_fault for answer in refusals) <= max_refused:
            # A broken GPU refuses every row of a valid table.
            raise ServerFaultError(
                f"{message}; that may be the server's fault, so another pod tries. If it is the table's, fix it or raise "
                f"{limit}, which is {max_refused}"
            )
        raise TableError(
            f"{message}; shard {self._index} has {refused} such rows, and {limit} is {max_refused}: fix the "
            "table, or raise it and find the rows in the run's folder _refused"
        )

    def _make_tables(
        self,
        plan: TablePlan,
        part: RowSpan,
        table: Any,
        answers: Sequence[RowsOutcome],
        signature: ModelSignature,
    ) -> tuple[Any, Any]:
        """Return the table of results and the table of refused rows."""
        scored = [answer for answer in answers if not answer.refusal]
        refusals = [answer for answer in answers if answer.refusal]
        mask = np.ones(table.num_rows, dtype=np.bool_)
        mask[[answer.first_row - part.start for answer in refusals]] = False
        kept_columns = table.select(list(self._order.keep))
        columns: dict[str, Any] = {
            name: kept_columns.column(name).filter(pa.array(mask)) for name in self._order.keep
        }
        for spec in signature.outputs:
            columns[spec.name] = make_output_column(spec, [answer.outputs[spec.name] for answer in scored])
        places = [plan.locate_row(answer.first_row) for answer in refusals]
        refused: Mapping[str, Any] = {
            **{name: kept_columns.column(name).filter(pa.array(~mask)) for name in self._order.keep},
            FILE_COLUMN: pa.array([path for path, _ in places], type=pa.string()),
            ROW_COLUMN: pa.array([row for _, row in places], type=pa.int64()),
            REASON_COLUMN: pa.array([answer.refusal for answer in refusals], type=pa.string()),
        }
        return pa.table(columns), pa.table(dict(refused))
