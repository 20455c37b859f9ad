"""The metrics of the data plane; their names are part of the contract, because dashboards and alerts use them."""

from typing import Final

from tidegate_dataplane import runner_interface
from tidegate_dataplane.contract.metrics import MetricCatalog

AGENT: Final = MetricCatalog("tidegate_agent_")
TRITON_UP: Final = AGENT.add_gauge("triton_up", "1 if Triton answers.")
TARGET_VERSION: Final = AGENT.add_gauge(
    "target_version", "Version that the controllers ordered, 0 before the first order."
)
SERVING_VERSION: Final = AGENT.add_gauge("serving_version", "Version that is served, 0 if there is none.")
SERVING_SINCE: Final = AGENT.add_gauge(
    "serving_since_timestamp_seconds",
    "Time at which the served version was first observed to answer, in seconds since 1970; 0 if there is none.",
)
FETCHED_BYTES: Final = AGENT.add_counter("fetched_bytes_total", "Bytes of artefacts received.")
FETCH_SECONDS: Final = AGENT.add_histogram(
    "fetch_seconds",
    "Time to fetch and verify an artefact.",
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600),
)
LOAD_SECONDS: Final = AGENT.add_histogram(
    "load_seconds",
    "Time from Triton's load call until the version was ready.",
    buckets=(0.01, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 600),
)
RUNNER_ENDS: Final = AGENT.add_counter(
    "runner_ends_total",
    "Processes of model versions that ended while serving and were restarted, by cause: memory or other.",
    "reason",
)
GRAPHS_REFUSED: Final = AGENT.add_counter(
    "graphs_refused_total",
    "Compiled graphs that the server did not load; the version is served with its published graph.",
)
FAILURES: Final = AGENT.add_counter("failures_total", "Orders that failed.", "reason")

SAMPLE_LOG: Final = MetricCatalog("tidegate_agent_samples_")
SAMPLES: Final = SAMPLE_LOG.add_counter(
    "total",
    "Answered requests that are in the sample: the sum of those written, duplicate, dropped and held.",
)
SAMPLES_WRITTEN: Final = SAMPLE_LOG.add_counter("written_total", "Samples that the sink has confirmed.")
SAMPLES_DUPLICATE: Final = SAMPLE_LOG.add_counter(
    "duplicate_total", "Samples whose id was already logged because the request ran twice."
)
SAMPLES_DROPPED: Final = SAMPLE_LOG.add_counter("dropped_total", "Samples that are not in the log.", "reason")
SAMPLES_HELD: Final = SAMPLE_LOG.add_gauge("held", "Samples that wait for the sink.")
SAMPLES_HELD_BYTES: Final = SAMPLE_LOG.add_gauge(
    "held_bytes", "Size of the samples that wait for the sink, in bytes."
)

EVENTS: Final = MetricCatalog("tidegate_agent_events_")
EVENTS_LAG: Final = EVENTS.add_gauge(
    "lag_seconds", "How long ago the pod had all events of the source's stream.", "source"
)
EVENTS_PENDING: Final = EVENTS.add_gauge(
    "pending", "Messages of the stream that the pod has not read, where the broker says so.", "source"
)
EVENTS_STORED: Final = EVENTS.add_counter("stored_total", "Events that the pod has stored.", "source")
EVENTS_REFUSED: Final = EVENTS.add_counter(
    "refused_total", "Messages that are no event that can be stored.", "source", "reason"
)
EVENTS_DEAD_LETTERS: Final = EVENTS.add_counter(
    "dead_letters_total", "Refused events that were written to the dead letters.", "source"
)
EVENTS_DEAD_LETTERS_FAILED: Final = EVENTS.add_counter(
    "dead_letters_failed_total",
    "Refused events that the dead letters' subject or topic did not take.",
    "source",
)

TABLE: Final = MetricCatalog("tidegate_agent_table_")
TABLE_LOADED: Final = TABLE.add_gauge(
    "loaded_timestamp_seconds",
    "Time at which the pod fetched the table that it serves from, in seconds since 1970, for tables with refresh.",
    "source",
)
TABLE_KEYS: Final = TABLE.add_gauge(
    "keys", "Keys of the table that the pod serves from, for tables with refresh.", "source"
)
TABLE_REFUSED: Final = TABLE.add_gauge(
    "refused",
    "1 if the latest check of a table with refresh did not lead to the newest one, for the reason that is a label; else 0.",
    "source",
    "reason",
)
TABLE_REFUSALS: Final = TABLE.add_counter(
    "refusals_total",
    "Checks of a table with refresh that did not lead to the newest one: TableRefused or TableUnreachable.",
    "source",
    "reason",
)

NEARLINE: Final = MetricCatalog("tidegate_agent_nearline_")
CONSUMING: Final = NEARLINE.add_gauge("consuming", "1 if the pod consumes its stream.")
BACKLOG: Final = NEARLINE.add_gauge(
    "backlog",
    "Messages of the stream that no pod has received, the same number on every pod; at most two seconds old.",
)
IN_FLIGHT: Final = NEARLINE.add_gauge("in_flight", "Messages that the pod holds, at most maxInFlight.")
MESSAGES: Final = NEARLINE.add_counter("messages_total", "Messages delivered to the pod.")
REDELIVERED: Final = NEARLINE.add_counter(
    "redelivered_total", "Messages that were delivered before, to this pod or another."
)
RESULTS: Final = NEARLINE.add_counter(
    "results_total", "Results stored; the sum of their rates over all pods is the throughput."
)
LATE: Final = NEARLINE.add_counter("late_total", "Results stored after the message's deadline.")
DUPLICATES: Final = NEARLINE.add_counter("duplicates_total", "Messages whose id already had a result.")
RETURNED: Final = NEARLINE.add_counter("returned_total", "Messages returned to the broker for redelivery.")
DEAD_LETTERS: Final = NEARLINE.add_counter(
    "dead_letters_total", "Messages published as dead letters.", "reason"
)
BUSY_SECONDS: Final = NEARLINE.add_counter(
    "busy_seconds_total",
    "Seconds in which the model processed at least one message; its rate is the share of time that the pod is busy.",
)

BATCH: Final = MetricCatalog("tidegate_batch_")
SHARD_ROWS: Final = BATCH.add_gauge("shard_rows", "Rows of the pod's shard.")
ROWS_LEFT: Final = BATCH.add_gauge("rows_left", "Rows of the shard that are not yet written.")
ROWS: Final = BATCH.add_counter("rows_total", "Rows that this process has scored and written.")
ROWS_FOUND: Final = BATCH.add_counter("rows_found_total", "Rows that an earlier pod wrote.")
ROWS_REFUSED: Final = BATCH.add_counter(
    "rows_refused_total", "Rows written to a file of refused rows, with the reason."
)
REQUESTS: Final = BATCH.add_counter("requests_total", "Requests to the model, without retries.")
RETRIES: Final = BATCH.add_counter("retries_total", "Retries after a failure of the store or the server.")

NODE: Final = MetricCatalog("tidegate_node_")
DAEMON_ANSWERS: Final = NODE.add_gauge(
    "mps_daemon_answers", "1 if the MPS control daemon of the node answers, else 0."
)
MPS_SERVERS: Final = NODE.add_gauge(
    "mps_servers",
    "MPS servers by their status: INITIALIZING, ACTIVE, FAULT or UNKNOWN.",
    "status",
)
MPS_CLIENTS: Final = NODE.add_gauge("mps_clients", "Processes connected to MPS.")

RUNNER: Final = MetricCatalog(runner_interface.PREFIX)
EXECUTIONS: Final = RUNNER.add_counter(
    runner_interface.EXECUTIONS, runner_interface.HELP_TEXTS[runner_interface.EXECUTIONS], "model", "version"
)
JOINED_REQUESTS: Final = RUNNER.add_counter(
    runner_interface.JOINED, runner_interface.HELP_TEXTS[runner_interface.JOINED], "model", "version", "way"
)
JOIN_MISMATCHES: Final = RUNNER.add_counter(
    runner_interface.MISMATCHES,
    runner_interface.HELP_TEXTS[runner_interface.MISMATCHES],
    "model",
    "version",
    "way",
)
SHARED_REQUESTS: Final = RUNNER.add_counter(
    runner_interface.SHARED, runner_interface.HELP_TEXTS[runner_interface.SHARED], "model", "version", "way"
)

BUCKET_REQUESTS: Final = RUNNER.add_counter(
    runner_interface.BUCKETED,
    runner_interface.HELP_TEXTS[runner_interface.BUCKETED],
    "model",
    "version",
    "way",
)
BUCKET_PADDING_ROWS: Final = RUNNER.add_counter(
    runner_interface.PADDED_ROWS,
    runner_interface.HELP_TEXTS[runner_interface.PADDED_ROWS],
    "model",
    "version",
)
ENGINES_LOADED: Final = RUNNER.add_counter(
    runner_interface.ENGINES_LOADED,
    runner_interface.HELP_TEXTS[runner_interface.ENGINES_LOADED],
    "model",
    "version",
)

FEATURE_STORE: Final = MetricCatalog("tidegate_feature_store_")
STORE_KEYS: Final = FEATURE_STORE.add_counter(
    "keys_total",
    "Keys whose events were read, by origin: redis, cache; and where Redis did not answer in time last-known, or default for none.",
    "model",
    "origin",
)
STORE_FAILURES: Final = FEATURE_STORE.add_counter(
    "failures_total", "Reads of a request's events that failed or took longer than timeout.", "model"
)

PIPELINE: Final = MetricCatalog("tidegate_pipeline_")
CALLS: Final = PIPELINE.add_counter(
    "calls_total", "Calls to a part, each for all requests of a batch.", "model", "part"
)
CALL_ROWS: Final = PIPELINE.add_counter("call_rows_total", "Rows in the calls to a part.", "model", "part")
BEST_ROWS: Final = PIPELINE.add_counter(
    "best_rows_total",
    "Requests whose best row, of the candidates that a part got, is also one of its fewest candidates (kept: yes) or not (no).",
    "model",
    "part",
    "kept",
)
PIPELINE_REQUESTS: Final = PIPELINE.add_counter(
    "requests_total",
    "Requests by the outcome of the part: answered, refused, failed, unavailable, timed out.",
    "model",
    "part",
    "outcome",
)
