"""What a pipeline has done, as counters of the server that it runs in."""

from collections.abc import Iterator, Mapping

from tidegate_dataplane.pipeline.pipeline import Pipeline

CALLS = "tidegate_pipeline_calls_total"
ROWS = "tidegate_pipeline_call_rows_total"
REQUESTS = "tidegate_pipeline_requests_total"

FAMILIES: Mapping[str, str] = {
    CALLS: "Calls made to a part, each for all requests of a batch.",
    ROWS: "Rows in the calls made to a part.",
    REQUESTS: "Requests by part and what the part did for them.",
}


def totals(pipeline: Pipeline) -> Iterator[tuple[str, Mapping[str, str], int]]:
    """Yield each counter's family, labels and present value."""
    for part, worker in pipeline.workers.items():
        yield CALLS, {"part": part}, worker.tally.calls
        yield ROWS, {"part": part}, worker.tally.rows
    for (part, outcome), count in pipeline.outcomes.items():
        yield REQUESTS, {"part": part, "outcome": outcome}, count
