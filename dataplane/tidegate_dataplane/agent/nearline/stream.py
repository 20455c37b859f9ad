"""Near-line stream of the pod: it runs a worker for the order and reports its state."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials, read_named_secret
from tidegate_dataplane.agent.kafka_server import KafkaServer
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.nats_server import NatsServer
from tidegate_dataplane.agent.nearline.broker import Broker
from tidegate_dataplane.agent.nearline.featured_model import FeaturedModel
from tidegate_dataplane.agent.nearline.features import FeatureClient
from tidegate_dataplane.agent.nearline.kafka_broker import KafkaBroker
from tidegate_dataplane.agent.nearline.message import ResultOrigin
from tidegate_dataplane.agent.nearline.model import TritonModel
from tidegate_dataplane.agent.nearline.nats_broker import NatsBroker
from tidegate_dataplane.agent.nearline.worker import StreamWorker
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import (
    BatchingMode,
    DesiredState,
    StreamOrder,
    StreamProblem,
    StreamReport,
)

WAITING_REQUESTS = 1
"""Requests in flight for a server without batches, beside those that its processes execute."""
FINISHED_WITHIN_S = 10.0
"""Limit for the end of all workers."""

StartWorker = Callable[[DesiredState, StreamOrder], StreamWorker]


class NearlineStream:
    """Stream of one pod, independent of versions, readiness and other requests."""

    def __init__(self, start: StartWorker) -> None:
        self._start = start
        self._order: DesiredState | None = None
        self._worker: StreamWorker | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._finished = False

    def follow_order(self, order: DesiredState) -> None:
        """Consume the stream of the order; a changed stream, bucket or batching replaces the worker."""
        before, self._order = self._order, order
        if self._finished or (before is not None and _worker_content(before) == _worker_content(order)):
            return
        self._stop_worker()
        if order.stream is not None:
            self._worker = self._start(order, order.stream)

    def report(self) -> StreamReport | None:
        """Return the state of the stream; None if the order has none, or it has not been reached yet."""
        worker = self._worker
        if worker is None:
            return None
        if worker.problem is not None:
            refused = worker.problem.refused
            problem = StreamProblem.STREAM_REFUSED if refused else StreamProblem.STREAM_UNREACHABLE
            return StreamReport(problem=problem, message=worker.problem.message, count=worker.stream_count)
        if worker.features_problem:
            problem = StreamProblem.FEATURES_UNAVAILABLE
            return StreamReport(problem=problem, message=worker.features_problem, count=worker.stream_count)
        return StreamReport(count=worker.stream_count) if worker.consuming else None

    async def finish_work(self) -> None:
        """Stop consuming for good, and wait for the workers to finish."""
        self._finished = True
        self._stop_worker()
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=FINISHED_WITHIN_S)

    def _stop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            task = asyncio.create_task(worker.finish())
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)


def make_worker_starter(
    settings: AgentSettings,
    environment: Mapping[str, str],
    metrics: AgentMetrics,
    is_ready: Callable[[str], Awaitable[bool]],
) -> StartWorker:
    """Return the function that starts the worker of an order."""

    def start_worker(desired: DesiredState, order: StreamOrder) -> StreamWorker:
        model = TritonModel(settings.triton_grpc, desired.model)

        async def read_inputs() -> frozenset[str]:
            return frozenset(spec.name for spec in (await model.get_signature()).inputs)

        features = FeatureClient(order.features, read_inputs) if order.features is not None else None
        return StreamWorker(
            order,
            ResultOrigin(desired.owner, settings.pod_name, desired.model),
            _make_broker(order, desired, settings, environment),
            model if features is None else FeaturedModel(model, features),
            lambda: is_ready(desired.model),
            metrics,
            at_once=_request_concurrency(desired, order),
            features=features,
        )

    return start_worker


def _make_broker(
    order: StreamOrder, desired: DesiredState, settings: AgentSettings, environment: Mapping[str, str]
) -> Broker:
    def read_from(folder: Path, secret: str) -> Callable[[], SecretCredentials]:
        return lambda: read_named_secret(folder, secret, environment)

    name, loopback = f"tidegate {desired.owner} {settings.pod_name}", settings.allow_loopback
    folder = settings.stream_secret_dir if order.kafka is None else settings.results_secret_dir
    nats = NatsServer(
        order.url, order.secret, read_from(folder, order.secret), folder, allow_loopback=loopback
    )
    if order.kafka is None:
        return NatsBroker(order, nats, name)
    folder = settings.stream_secret_dir
    credentials = read_from(folder, order.kafka.secret)
    kafka = KafkaServer(order.kafka, credentials, folder, allow_loopback=loopback)
    return KafkaBroker(order, kafka, nats, name)


def _worker_content(order: DesiredState) -> tuple[object, ...]:
    """Return the fields of the order that need another worker when they change."""
    return (
        order.stream,
        order.owner,
        order.model,
        order.batching,
        order.max_batch_size,
        order.instances,
    )


def _request_concurrency(desired: DesiredState, order: StreamOrder) -> int:
    """Return how many messages to ask the model at once.

    With batches half of what the pod holds is asked, so that the other half can still be ordered by deadline.
    """
    without_batches = desired.instances + WAITING_REQUESTS
    if desired.batching is BatchingMode.OFF:
        return min(without_batches, order.max_in_flight)
    return min(max(without_batches, order.max_in_flight // 2), 2 * desired.max_batch_size * desired.instances)
