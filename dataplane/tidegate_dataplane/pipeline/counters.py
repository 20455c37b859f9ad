"""The counters of a pipeline, for the metrics of its server."""

from collections.abc import Iterator, Mapping

from tidegate_dataplane.contract.exported import CALL_ROWS, CALLS, PIPELINE, PIPELINE_REQUESTS
from tidegate_dataplane.pipeline.pipeline import PipelineRunner

FAMILIES: Mapping[str, str] = {metric.name: metric.help_text for metric in PIPELINE}


def read_totals(pipeline: PipelineRunner) -> Iterator[tuple[str, Mapping[str, str], int]]:
    """Yield each counter's family, labels and current value."""
    for part, worker in pipeline.workers.items():
        yield CALLS.name, {"part": part}, worker.tally.calls
        yield CALL_ROWS.name, {"part": part}, worker.tally.rows
    for (part, outcome), count in pipeline.outcomes.items():
        yield PIPELINE_REQUESTS.name, {"part": part, "outcome": outcome}, count
