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

from tidegate_dataplane.agent.artefacts.credentials import read_credentials
from tidegate_dataplane.agent.files import read_first_order
from tidegate_dataplane.agent.nearline.model import NoAnswerError, TritonModel
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch.errors import ServerFaultError, TableError
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.batch.results import Results
from tidegate_dataplane.batch.shard import Shard
from tidegate_dataplane.batch.store import open_sink, open_source
from tidegate_dataplane.contract import BatchOrder, DesiredState

log = structlog.get_logger()

INDEX: Final = "JOB_COMPLETION_INDEX"
"""The variable that Kubernetes sets in every container of an Indexed Job's pod."""
TERMINATION_LOG: Final = "TIDEGATE_BATCH_TERMINATION_LOG"
DONE, TRY_AGAIN, NEVER = 0, 1, 3
"""Exit codes: the Job fails a shard at once for NEVER, and after its backoff limit for TRY_AGAIN."""
STUCK_S: Final = 300.0
"""The process ends after failures for so long without a row written; the Job starts another pod, maybe on another node."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
MOST_WORDS: Final = 3_000
"""Kubernetes keeps 4096 bytes of a termination message."""


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Score the shard that the environment names; return the exit code."""
    # Process 1 ignores SIGTERM without a handler. Nothing needs to be finished: a file is written whole or not at all.
    signal.signal(signal.SIGTERM, _told_to_end)
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
    code, message = _scored(settings, environment, metrics)
    if message:
        log.error("shard_failed", message=message, code=code)
        _say_last(message, Path(environment.get(TERMINATION_LOG, "/dev/termination-log")))
    return code


def _told_to_end(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)


def _scored(settings: AgentSettings, environment: Mapping[str, str], metrics: BatchMetrics) -> tuple[int, str]:
    """Try until the shard is done or has failed, or no row was written for STUCK_S; return the exit code and the error."""
    desired = read_first_order(settings.config_dir)
    if desired is None or desired.batch is None or INDEX not in environment:
        return NEVER, f"this pod has no order for a batch, or no {INDEX}: is it a pod of an Indexed Job?"
    last_progress_s, pause_s, rows_left = time.monotonic(), FIRST_PAUSE_S, -1.0
    while True:
        code, message = _tried(settings, environment, desired, desired.batch, metrics)
        if code is not None:
            return code, message
        rows_left_now = _left(metrics)
        if rows_left_now != rows_left:
            last_progress_s, pause_s, rows_left = time.monotonic(), FIRST_PAUSE_S, rows_left_now
        if time.monotonic() - last_progress_s > STUCK_S:
            return TRY_AGAIN, message
        metrics.troubles.inc()
        log.warning("shard_retried", message=message, after_s=pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _tried(
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
        _attempt(settings, environment, desired, order, metrics)
    except TableError as error:
        return NEVER, str(error)
    except ServerFaultError as error:
        return TRY_AGAIN, str(error)
    except ArtefactError as error:
        return None if error.refusal.is_transient else NEVER, error.refusal.message
    except NoAnswerError as error:
        return None, f"the server does not answer: {error.message}"
    except Exception as error:  # an unknown error, which another pod may not have
        log.exception("shard_crashed")
        return TRY_AGAIN, f"{_cause(error)}; the log of this pod has more"
    return DONE, ""


def _attempt(
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
        model = runner.run(_model(settings, desired))
        try:
            results = Results(open_sink(order.sink, settings, credentials), order.run, runner.run)
            source = open_source(order.source, settings, credentials)
            Shard(order, int(environment[INDEX]), source, results, model, metrics, runner.run).run()
        finally:
            runner.run(model.close())


async def _model(settings: AgentSettings, desired: DesiredState) -> TritonModel:
    """Open the client of the pod's server.

    This is a coroutine because the gRPC channel belongs to the event loop in which it is made.
    """
    return TritonModel(settings.triton_grpc, desired.model, str(desired.version))


def _cause(error: BaseException) -> str:
    """Return the type and text of an error; of an exception group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _left(metrics: BatchMetrics) -> float:
    return next(iter(metrics.rows_left.collect())).samples[0].value


def _say_last(message: str, path: Path) -> None:
    try:
        path.write_text(message[:MOST_WORDS])
    except OSError as error:
        log.warning("termination_log_not_written", path=str(path), error=str(error))


if __name__ == "__main__":
    sys.exit(main())
