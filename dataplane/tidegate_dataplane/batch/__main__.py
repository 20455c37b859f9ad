"""Run the process of a Job's pod: `python3 -m tidegate_dataplane.batch` ends when its shard is done or has failed."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import start_http_server

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials, read_credentials
from tidegate_dataplane.agent.files import read_first_order
from tidegate_dataplane.agent.nearline.model import NoAnswerError, TritonModel
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch.errors import ServerFaultError, TableError
from tidegate_dataplane.batch.feature_sources import FeatureSources
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.batch.parquet import Wait
from tidegate_dataplane.batch.results import ResultsFolder
from tidegate_dataplane.batch.shard import ShardScorer
from tidegate_dataplane.batch.store import open_sink, open_source
from tidegate_dataplane.contract import BatchOrder, DesiredState, ModelFormat

log = structlog.get_logger()

INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
"""The variable that Kubernetes sets in every container of an Indexed Job's pod."""
TERMINATION_LOG_VARIABLE: Final = "TIDEGATE_BATCH_TERMINATION_LOG"
DONE, RETRYABLE, PERMANENT = 0, 1, 3
"""Exit codes: the Job fails a shard at once for PERMANENT, and after its backoff limit for RETRYABLE."""
NO_PROGRESS_LIMIT_S: Final = 300.0
"""The process ends after failures for this time without a row written; the Job starts another pod, maybe on another node."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
MAX_MESSAGE_CHARS: Final = 3_000
"""Kubernetes keeps 4096 bytes of a termination message."""


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Score the shard that the environment names; return the exit code."""
    # Process 1 ignores SIGTERM without a handler. Nothing needs to be finished: a file is written whole or not at all.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ]
    )
    settings = AgentSettings.from_environment(environment)
    metrics = BatchMetrics()
    start_http_server(settings.batch_http_port, settings.address, metrics.registry)
    code, message = _score_shard(settings, environment, metrics)
    if message:
        log.error("shard_failed", message=message, code=code)
        _write_termination_log(
            message, Path(environment.get(TERMINATION_LOG_VARIABLE, "/dev/termination-log"))
        )
    return code


def _exit_on_signal(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)


def _score_shard(
    settings: AgentSettings, environment: Mapping[str, str], metrics: BatchMetrics
) -> tuple[int, str]:
    """Try until the shard is done or has failed, or no row was written for NO_PROGRESS_LIMIT_S; return the exit code and the error."""
    desired = read_first_order(settings.config_dir)
    if desired is None or desired.batch is None or INDEX_VARIABLE not in environment:
        return (
            PERMANENT,
            f"this pod has no order for a batch, or no {INDEX_VARIABLE}: is it a pod of an Indexed Job?",
        )
    last_progress_s, pause_s, rows_left = time.monotonic(), FIRST_PAUSE_S, -1.0
    while True:
        code, message = _try_shard(settings, environment, desired, desired.batch, metrics)
        if code is not None:
            return code, message
        rows_left_now = _read_rows_left(metrics)
        if rows_left_now != rows_left:
            last_progress_s, pause_s, rows_left = time.monotonic(), FIRST_PAUSE_S, rows_left_now
        if time.monotonic() - last_progress_s > NO_PROGRESS_LIMIT_S:
            return RETRYABLE, message
        metrics.retries.inc()
        log.warning("shard_retried", message=message, after_s=pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _try_shard(
    settings: AgentSettings,
    environment: Mapping[str, str],
    desired: DesiredState,
    order: BatchOrder,
    metrics: BatchMetrics,
) -> tuple[int | None, str]:
    """Try once; return the exit code and the error.

    The exit code is None when this process tries again.
    """
    try:
        _run_shard(settings, environment, desired, order, metrics)
    except TableError as error:
        return PERMANENT, str(error)
    except ServerFaultError as error:
        return RETRYABLE, str(error)
    except ArtefactError as error:
        return None if error.refusal.is_transient else PERMANENT, error.refusal.message
    except NoAnswerError as error:
        return None, f"the server does not answer: {error.message}"
    except Exception as error:  # an unknown error, which another pod may not have
        log.exception("shard_crashed")
        return RETRYABLE, f"{_describe_error(error)}; the log of this pod has more"
    return DONE, ""


def _run_shard(
    settings: AgentSettings,
    environment: Mapping[str, str],
    desired: DesiredState,
    order: BatchOrder,
    metrics: BatchMetrics,
) -> None:
    secret = (
        (settings.batch_secret_dir, order.secret)
        if order.secret
        else (settings.secret_dir, settings.secret_name)
    )
    credentials = read_credentials(*secret, environment)
    with asyncio.Runner() as runner:
        model = runner.run(_open_model(settings, desired))
        try:
            results = ResultsFolder(open_sink(order.sink, settings, credentials), order.run, runner.run)
            source = open_source(order.source, settings, credentials)
            features = _open_features(order, settings, credentials, runner.run)
            ShardScorer(
                order, int(environment[INDEX_VARIABLE]), source, results, model, metrics, runner.run, features
            ).score_shard()
        finally:
            if model is not None:
                runner.run(model.close_connection())


def _open_features(
    order: BatchOrder, settings: AgentSettings, credentials: SecretCredentials, wait: Wait
) -> FeatureSources | None:
    """Open what the order's features are computed from; None if it has no features."""
    if order.features is None:
        return None
    return FeatureSources(order.features, lambda uri: open_source(uri, settings, credentials), wait)


async def _open_model(settings: AgentSettings, desired: DesiredState) -> TritonModel | None:
    """Open the client of the pod's server; None for a backfill, which has none.

    This is a coroutine because the gRPC channel belongs to the event loop in which it is made.
    """
    if desired.format is ModelFormat.FEATURES:
        return None
    return TritonModel(settings.triton_grpc, desired.model, str(desired.version))


def _describe_error(error: BaseException) -> str:
    """Return the type and text of an error; of an exception group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _read_rows_left(metrics: BatchMetrics) -> float:
    return next(iter(metrics.rows_left.collect())).samples[0].value


def _write_termination_log(message: str, path: Path) -> None:
    try:
        path.write_text(message[:MAX_MESSAGE_CHARS])
    except OSError as error:
        log.warning("termination_log_not_written", path=str(path), error=str(error))


if __name__ == "__main__":
    sys.exit(main())
