"""Entry point of a Job's pod: `python3 -m tidegate_dataplane.batch`. It ends when its shard is done, or cannot be."""

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
"""What Kubernetes tells every container of an Indexed Job's pod."""
TERMINATION_LOG: Final = "TIDEGATE_BATCH_TERMINATION_LOG"
DONE, TRY_AGAIN, NEVER = 0, 1, 3
"""Exit codes: the Job gives a shard up at once for NEVER, and after its backoff limit for TRY_AGAIN."""
STUCK_S: Final = 300.0
"""A store that fails so long without a file written in between ends the pod: the Job starts another, elsewhere maybe."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
MOST_WORDS: Final = 3_000
"""Kubernetes keeps 4096 bytes of what a container says last."""


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Score the shard that the environment names; return the exit code."""
    # As process 1 nothing ends it otherwise. Nothing needs to be finished: a file is there whole, or not at all.
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
    code, said = _scored(settings, environment, metrics)
    if said:
        log.error("shard_failed", message=said, code=code)
        _say_last(said, Path(environment.get(TERMINATION_LOG, "/dev/termination-log")))
    return code


def _told_to_end(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)


def _scored(
    settings: AgentSettings, environment: Mapping[str, str], metrics: BatchMetrics
) -> tuple[int, str]:
    """Try until the shard is done, cannot be done, or nothing has moved for STUCK_S; say why where it is not."""
    desired = read_first_order(settings.config_dir)
    if desired is None or desired.batch is None or INDEX not in environment:
        return NEVER, f"this pod has no order for a batch, or no {INDEX}: is it a pod of an Indexed Job?"
    moved, pause_s, left = time.monotonic(), FIRST_PAUSE_S, -1.0
    while True:
        code, said = _tried(settings, environment, desired, desired.batch, metrics)
        if code is not None:
            return code, said
        now_left = _left(metrics)
        if now_left != left:
            moved, pause_s, left = time.monotonic(), FIRST_PAUSE_S, now_left
        if time.monotonic() - moved > STUCK_S:
            return TRY_AGAIN, said
        metrics.troubles.inc()
        log.warning("tried_again", message=said, after_s=pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _tried(
    settings: AgentSettings,
    environment: Mapping[str, str],
    desired: DesiredState,
    order: BatchOrder,
    metrics: BatchMetrics,
) -> tuple[int | None, str]:
    """Try once; return the exit code, None where this pod is to try again, and why."""
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
    except Exception as error:  # nobody knows of it, and in a pod elsewhere it may not be
        log.exception("shard_broke")
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
    """Its channel belongs to the loop that it is made in."""
    return TritonModel(settings.triton_grpc, desired.model, str(desired.version))


def _cause(error: BaseException) -> str:
    """What an error is in words; of a group's, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _left(metrics: BatchMetrics) -> float:
    return next(iter(metrics.rows_left.collect())).samples[0].value


def _say_last(said: str, place: Path) -> None:
    try:
        place.write_text(said[:MOST_WORDS])
    except OSError as error:
        log.warning("last_words_not_written", path=str(place), error=str(error))


if __name__ == "__main__":
    sys.exit(main())
