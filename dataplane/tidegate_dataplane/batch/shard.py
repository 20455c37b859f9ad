"""Score one shard, from its first unwritten row to its last."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import structlog

from tidegate_dataplane.agent.nearline.model import ModelSignature, TritonModel
from tidegate_dataplane.batch.columns import Input, inputs_of, output_column, refused_rows, runs, tensors
from tidegate_dataplane.batch.errors import ServerFaultError, TableError
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.batch.parquet import RowStream, Wait, measured, rows_of, table_files
from tidegate_dataplane.batch.plan import Span, TablePlan
from tidegate_dataplane.batch.results import Results, ShardReport
from tidegate_dataplane.batch.scoring import Answer, Batch, Scorer
from tidegate_dataplane.batch.store import Source
from tidegate_dataplane.contract import BatchOrder

log = structlog.get_logger()

ROW, REASON = "tidegate_row", "tidegate_reason"
"""Columns of the files of refused rows, with FILE: the row's number in its file, and the reason."""
FILE = "tidegate_file"


class Shard:
    """Scores the unwritten rows of one shard. Every step is idempotent."""

    def __init__(
        self,
        order: BatchOrder,
        index: int,
        source: Source,
        results: Results,
        model: TritonModel,
        metrics: BatchMetrics,
        wait: Wait,
    ) -> None:
        self._order = order
        self._index = index
        self._source = source
        self._results = results
        self._model = model
        self._scorer = Scorer(model, f"{order.run}-{index}")
        self._metrics = metrics
        self._wait = wait

    def run(self) -> ShardReport:
        """Score and write every part of the shard that has no file of results yet.

        Raises:
            TableError: the table, the model or the spec must change first.
            ArtefactError: the store failed; another attempt may succeed.
            ServerFaultError: the server refused too many rows; another server may not.
        """
        plan = self._plan()
        span = plan.shard(self._index)
        parts = list(span.parts(self._order.rows_per_file))
        written = self._results.done(self._index, parts)
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
            of=plan.rows,
            run=plan.run,
        )
        self._check_refused(plan, (), refused)
        if remaining:
            refused += self._score(plan, remaining, len(written), refused)
        rows = span.end - span.start
        report = ShardReport(shard=self._index, rows=rows - refused, refused=refused, files=len(parts))
        run_complete = self._results.finish(report, plan.shards)
        log.info(
            "shard_done", shard=self._index, rows=report.rows, refused=refused, run_complete=run_complete
        )
        return report

    def _plan(self) -> TablePlan:
        current = self._results.plan()
        if current is None:
            paths = table_files(self._wait(self._source.list("")))
            if not paths:
                raise TableError(f"there is no .parquet file below {self._order.source}")
            uri = self._order.source
            files = tuple(measured(self._source, uri, path, self._wait) for path in paths)
            plan = TablePlan(run=self._order.run, source=uri, shards=self._order.shards, files=files)
            current = self._results.keep_plan(plan)
        if (current.run, current.source, current.shards) != (
            self._order.run,
            self._order.source,
            self._order.shards,
        ):
            raise TableError(
                f"the folder of run {self._order.run} is another run's: use another spec.batch.output"
            )
        return current

    def _score(self, plan: TablePlan, parts: Sequence[Span], first: int, refused: int) -> int:
        """Score the parts from number `first` on; return how many of their rows were refused.

        `refused` rows of earlier parts count towards the limit.
        """
        signature = self._signature()
        renamed = {column.input: column.column for column in self._order.columns}
        inputs = inputs_of(signature.inputs, renamed)
        columns = sorted({*self._order.keep, *(model_input.column for model_input in inputs)})
        clashing = {spec.name for spec in signature.outputs} & set(self._order.keep)
        if clashing:
            raise TableError(
                f"column {min(clashing)!r} of spec.batch.output.keep has the name of an output of the model: leave it out"
            )
        span = Span(parts[0].start, parts[-1].end)
        stream = RowStream(self._tables(plan, span, columns))
        added = 0
        for number, part in enumerate(parts, first):
            table = stream.take(part.end - part.start)
            answers = self._answers(plan, part, table, inputs, signature.rows, refused + added)
            added += sum(bool(answer.refused) for answer in answers)
            self._check_refused(plan, answers, refused + added)
            scored, refused_rows_table = self._assembled(plan, part, table, answers, signature)
            self._results.put(self._index, number, part.start, scored, refused_rows_table)
            self._metrics.rows.inc(scored.num_rows)
            self._metrics.rows_refused.inc(refused_rows_table.num_rows)
            self._metrics.rows_left.dec(part.end - part.start)
            log.info("part_written", shard=self._index, part=number, rows=scored.num_rows)
        return added

    def _signature(self) -> ModelSignature:
        self._wait(self._scorer.ready())
        signature: ModelSignature = self._wait(self._model.get_signature())
        if signature.rows == 0:
            raise TableError(
                "the model takes no rows: its artefact has no batch dimension, the first of every input and output"
            )
        return signature

    def _tables(self, plan: TablePlan, span: Span, columns: Sequence[str]) -> Iterator[Any]:
        for segment in plan.segments(span):
            yield from rows_of(self._source, self._order.source, segment, columns, self._wait)

    def _answers(
        self, plan: TablePlan, part: Span, table: Any, inputs: Sequence[Input], most: int, refused: int
    ) -> list[Answer]:
        """Return the answers for all rows of a part, in order; every pod cuts the same batches.

        Answers are missing if more rows are refused than the order allows, with the `refused` ones before.
        """
        unfit = refused_rows(table, inputs)
        batches = list[Batch]()
        edges = sorted({-1, *unfit, table.num_rows})
        for previous, following in itertools.pairwise(edges):
            fit_rows = table.slice(previous + 1, following - previous - 1)
            for first, count in runs(fit_rows, inputs) if fit_rows.num_rows else ():
                for start in range(first, first + count, most):
                    rows = min(most, first + count - start)
                    begins = part.start + previous + 1 + start
                    location = "{}, row {}".format(*plan.place(begins))
                    batches.append(
                        Batch(begins, rows, tensors(fit_rows.slice(start, rows), inputs, location))
                    )
        self._metrics.requests.inc(len(batches))
        spare = self._order.max_refused_rows - refused - len(unfit)
        answers: list[Answer] = self._wait(self._scorer.scored(batches, spare))
        answers += [Answer(part.start + row, 1, {}, refused=reason) for row, reason in unfit.items()]
        return sorted(answers, key=lambda answer: answer.first)

    def _check_refused(self, plan: TablePlan, answers: Sequence[Answer], refused: int) -> None:
        max_refused = self._order.max_refused_rows
        if refused <= max_refused:
            return
        refusals = [answer for answer in answers if answer.refused]
        if not refusals:
            raise TableError(
                f"shard {self._index} has {refused} refused rows already, and spec.batch.maxRefusedRows is {max_refused}: raise "
                "it, or find the rows in the run's folder _refused, fix the table, and start a new run"
            )
        last = refusals[-1]
        path, row = plan.place(last.first)
        message = f"row {row} of {self._order.source.rstrip('/')}/{path} is refused: {last.refused}"
        if refused - sum(answer.by_server for answer in refusals) <= max_refused:
            # A broken GPU refuses every row of a valid table.
            raise ServerFaultError(
                f"{message}; that may be the server's fault, so another pod tries. If it is the table's, fix it or raise "
                f"spec.batch.maxRefusedRows, which is {max_refused}"
            )
        raise TableError(
            f"{message}; shard {self._index} has {refused} such rows, and spec.batch.maxRefusedRows is {max_refused}: fix the "
            "table, or raise it and find the rows in the run's folder _refused"
        )

    def _assembled(
        self, plan: TablePlan, part: Span, table: Any, answers: Sequence[Answer], signature: ModelSignature
    ) -> tuple[Any, Any]:
        """Return the table of results and the table of refused rows."""
        scored = [answer for answer in answers if not answer.refused]
        refusals = [answer for answer in answers if answer.refused]
        mask = np.ones(table.num_rows, dtype=np.bool_)
        mask[[answer.first - part.start for answer in refusals]] = False
        kept_columns = table.select(list(self._order.keep))
        columns: dict[str, Any] = {
            name: kept_columns.column(name).filter(pa.array(mask)) for name in self._order.keep
        }
        for spec in signature.outputs:
            columns[spec.name] = output_column(spec, [answer.outputs[spec.name] for answer in scored])
        places = [plan.place(answer.first) for answer in refusals]
        refused: Mapping[str, Any] = {
            **{name: kept_columns.column(name).filter(pa.array(~mask)) for name in self._order.keep},
            FILE: pa.array([path for path, _ in places], type=pa.string()),
            ROW: pa.array([row for _, row in places], type=pa.int64()),
            REASON: pa.array([answer.refused for answer in refusals], type=pa.string()),
        }
        return pa.table(columns), pa.table(dict(refused))
