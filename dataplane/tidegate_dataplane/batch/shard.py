"""One shard, from its first row that is in no file yet to its last."""

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
"""Columns of the files of refused rows: the row's number in its file, and why; with the file's name beside them."""
FILE = "tidegate_file"


class Shard:
    """Scores what is left of one shard. Everything it does can be done again."""

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
        """Score and write until the shard is whole.

        Raises:
            TableError: the table, the model or the spec must change first.
            ArtefactError: the store failed; it may do better soon.
            ServerFaultError: the server refused too many rows; another one may not.
        """
        plan = self._plan()
        span = plan.shard(self._index)
        parts = list(span.parts(self._order.rows_per_file))
        done = self._results.done(self._index, parts)
        left = parts[len(done) :]
        found = sum(one.rows + one.refused for one in done)
        refused = sum(one.refused for one in done)
        self._metrics.shard_rows.set(span.end - span.start)
        self._metrics.rows_left.set(span.end - span.start - found)
        self._metrics.rows_found.inc(found)
        log.info(
            "shard_begins",
            shard=self._index,
            rows=span.end - span.start,
            found=found,
            of=plan.rows,
            run=plan.run,
        )
        self._check_refused(plan, (), refused)
        if left:
            refused += self._score(plan, left, len(done), refused)
        rows = span.end - span.start
        report = ShardReport(shard=self._index, rows=rows - refused, refused=refused, files=len(parts))
        last = self._results.finish(report, plan.shards)
        log.info("shard_done", shard=self._index, rows=report.rows, refused=refused, run_complete=last)
        return report

    def _plan(self) -> TablePlan:
        kept = self._results.plan()
        if kept is None:
            paths = table_files(self._wait(self._source.list("")))
            if not paths:
                raise TableError(f"there is no .parquet file below {self._order.source}")
            where = self._order.source
            files = tuple(measured(self._source, where, path, self._wait) for path in paths)
            plan = TablePlan(run=self._order.run, source=where, shards=self._order.shards, files=files)
            kept = self._results.keep_plan(plan)
        if (kept.run, kept.source, kept.shards) != (self._order.run, self._order.source, self._order.shards):
            raise TableError(
                f"the folder of run {self._order.run} is another run's: use another spec.batch.output"
            )
        return kept

    def _score(self, plan: TablePlan, parts: Sequence[Span], first: int, refused: int) -> int:
        """Score the parts from number `first` on; return how many of their rows were refused, beside `refused` before."""
        signature = self._signature()
        renamed = {column.input: column.column for column in self._order.columns}
        inputs = inputs_of(signature.inputs, renamed)
        columns = sorted({*self._order.keep, *(each.column for each in inputs)})
        clashing = {spec.name for spec in signature.outputs} & set(self._order.keep)
        if clashing:
            raise TableError(
                f"column {min(clashing)!r} of spec.batch.output.keep has the name of an output of the model: leave it out"
            )
        whole = Span(parts[0].start, parts[-1].end)
        stream = RowStream(self._tables(plan, whole, columns))
        added = 0
        for number, part in enumerate(parts, first):
            table = stream.take(part.end - part.start)
            answers = self._answers(plan, part, table, inputs, signature.rows, refused + added)
            added += sum(bool(answer.refused) for answer in answers)
            self._check_refused(plan, answers, refused + added)
            scored, turned_away = self._assembled(plan, part, table, answers, signature)
            self._results.put(self._index, number, part.start, scored, turned_away)
            self._metrics.rows.inc(scored.num_rows)
            self._metrics.rows_refused.inc(turned_away.num_rows)
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
        """One answer for each row or several, in their order; batches are cut alike whoever scores the part.

        Some are missing where more rows are refused than may be, with the `refused` ones before.
        """
        unfit = refused_rows(table, inputs)
        batches = list[Batch]()
        edges = sorted({-1, *unfit, table.num_rows})
        for before, after in itertools.pairwise(edges):
            fit = table.slice(before + 1, after - before - 1)
            for first, count in runs(fit, inputs) if fit.num_rows else ():
                for start in range(first, first + count, most):
                    rows = min(most, first + count - start)
                    begins = part.start + before + 1 + start
                    where = "{}, row {}".format(*plan.place(begins))
                    batches.append(Batch(begins, rows, tensors(fit.slice(start, rows), inputs, where)))
        self._metrics.requests.inc(len(batches))
        spare = self._order.max_refused_rows - refused - len(unfit)
        answers: list[Answer] = self._wait(self._scorer.scored(batches, spare))
        answers += [Answer(part.start + row, 1, {}, refused=why) for row, why in unfit.items()]
        return sorted(answers, key=lambda answer: answer.first)

    def _check_refused(self, plan: TablePlan, answers: Sequence[Answer], refused: int) -> None:
        most = self._order.max_refused_rows
        if refused <= most:
            return
        bad = [answer for answer in answers if answer.refused]
        if not bad:
            raise TableError(
                f"shard {self._index} has {refused} refused rows already, and spec.batch.maxRefusedRows is {most}: raise "
                "it, or find the rows in the run's folder _refused, mend the table, and start the run anew"
            )
        last = bad[-1]
        path, row = plan.place(last.first)
        said = f"row {row} of {self._order.source.rstrip('/')}/{path} is refused: {last.refused}"
        if refused - sum(answer.by_server for answer in bad) <= most:
            # A broken GPU refuses every row, and the table is as good as it was.
            raise ServerFaultError(
                f"{said}; that may be the server's fault, so another pod tries. Where it is the table's, mend it or raise "
                f"spec.batch.maxRefusedRows, which is {most}"
            )
        raise TableError(
            f"{said}; shard {self._index} has {refused} such rows, and spec.batch.maxRefusedRows is {most}: mend the "
            "table, or raise it and find the rows in the run's folder _refused"
        )

    def _assembled(
        self, plan: TablePlan, part: Span, table: Any, answers: Sequence[Answer], signature: ModelSignature
    ) -> tuple[Any, Any]:
        """The table of results, and that of refused rows."""
        good = [answer for answer in answers if not answer.refused]
        bad = [answer for answer in answers if answer.refused]
        mask = np.ones(table.num_rows, dtype=np.bool_)
        mask[[answer.first - part.start for answer in bad]] = False
        kept = table.select(list(self._order.keep))
        columns: dict[str, Any] = {
            name: kept.column(name).filter(pa.array(mask)) for name in self._order.keep
        }
        for spec in signature.outputs:
            columns[spec.name] = output_column(spec, [answer.outputs[spec.name] for answer in good])
        places = [plan.place(answer.first) for answer in bad]
        refused: Mapping[str, Any] = {
            **{name: kept.column(name).filter(pa.array(~mask)) for name in self._order.keep},
            FILE: pa.array([path for path, _ in places], type=pa.string()),
            ROW: pa.array([row for _, row in places], type=pa.int64()),
            REASON: pa.array([answer.refused for answer in bad], type=pa.string()),
        }
        return pa.table(columns), pa.table(dict(refused))
