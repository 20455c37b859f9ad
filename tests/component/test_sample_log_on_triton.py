"""The sample log from a real Triton through the agent to a real NATS server: each id once, and nobody waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from builders.metrics_page import metric
from builders.probe_model import STEP, publish
from builders.waiting import LIMIT_S, at_rest, wait_until
from fixtures.agent import ModelPod
from fixtures.nats import SUBJECT, RunningNats, a_nats
from fixtures.triton import TritonFiles, a_triton
from tidegate.api.reasons import Reason
from tidegate_dataplane.contract import AgentPhase, DesiredState
from tidegate_dataplane.sampling.frames import DropReason
from tidegate_dataplane.sampling.sampler import is_sampled

pytestmark = [pytest.mark.triton]

BUFFER_BYTES = 256 << 10
MAX_PAYLOAD = 4096


@dataclass(slots=True)
class LoggingPod:
    """A pod that serves versions of `ctr`, and the broker that it logs to."""

    pod: ModelPod
    nats: RunningNats
    generation: int = 1
    answers: dict[str, float] = field(default_factory=dict[str, float])
    seconds: list[float] = field(default_factory=list[float])
    before: dict[str, int] = field(default_factory=dict[str, int])
    number: int = 0
    """Of the test that has it."""
    waited: Iterator[int] = field(default_factory=itertools.count)
    """Numbers of the requests that wait for samples."""
    first: int = 0
    """How many records earlier tests have written."""

    def begin(self) -> None:
        """Forget what an earlier test did, and log everything that version 1 answers."""
        if not self.pod.runs:
            self.start_agent()
        self.ordered()
        self.number += 1
        self.wait_until_logging()
        self.before = {name: self._page(name) for name in ("", "_written", "_duplicate", "_dropped")}
        self.first = self.nats.count()
        self.answers, self.seconds = {}, []

    def wait_until_logging(self) -> int:
        """Ask until samples come: runners hear of a share a moment after the agent; how many samples that has cost."""
        start = self._page("")

        def asked() -> str:
            name = f"begin-{self.number}-{next(self.waited)}"
            self.ask([name])
            return name

        wait_until(lambda: asked() and self._page("") > start, what="samples come")
        last = asked()
        wait_until(
            lambda: last in self._written() and not metric(self.pod.metrics(), "tidegate_agent_samples_held"),
            what="all of them are written",
        )
        return self._page("") - start

    def wait_for_share(self, share: float) -> int:
        """Ask until the runner goes by a share, which it hears of a moment after the agent; how many samples that has cost."""
        numbers, asked = itertools.count(), list[str]()

        def is_heard() -> bool:
            names = (f"begin-{self.number}-{share}-{number}" for number in numbers)
            left_out = next(name for name in names if not is_sampled(name, share))
            taken = next(name for name in names if is_sampled(name, share))
            asked.extend((left_out, taken))
            self.ask([left_out, taken])
            # A runner's samples come in order: where the first was taken too, it is there before the second.
            wait_until(lambda: taken in self._written(), what="the sample is written")
            return left_out not in self._written()

        wait_until(is_heard, what=f"the runner samples {share:g} of all")
        return len(self._written() & {*asked})

    def wait_for_silence(self) -> int:
        """Ask until the runner takes no samples, of which it hears a moment after the agent; how many the agent has heard of."""
        numbers = itertools.count()

        def count() -> int:
            return at_rest(lambda: self.counted(""), what="samples that the agent has heard of")

        heard = count()

        def is_heard() -> bool:
            nonlocal heard
            before = heard
            self.ask([f"begin-{self.number}-silence-{next(numbers)}"])
            heard = count()
            return heard == before

        wait_until(is_heard, what="the runner takes no samples")
        return heard

    def _written(self) -> set[str]:
        return {record["id"] for record in self.nats.records()}

    def start_agent(self) -> None:
        """Start the agent again, whose counters begin anew."""
        self.pod.start_agent()
        self.before = {}

    def ids(self, start: int, count: int) -> list[str]:
        """Ids that no other test has."""
        return [f"request-{self.number}-{number}" for number in range(start, start + count)]

    def order(self, share: float | None = 1.0, version: int = 1, **sink: str) -> DesiredState:
        """An order whose log goes to the broker; a share of None orders no log."""
        self.generation += 1
        samples = {"share": share, "url": self.nats.url, "subject": SUBJECT, **sink}
        return self.pod.order(version, generation=self.generation, samples=None if share is None else samples)

    def ordered(self, share: float | None = 1.0, version: int = 1, **sink: str) -> None:
        """Give the order, and wait until the version serves."""
        self.pod.put(self.order(share, version, **sink))
        self.pod.wait_for(
            f"version {version} serves",
            lambda said: said.phase is AgentPhase.READY and said.serving == version,
        )

    def ask(self, ids: Sequence[str], rows: int = 1) -> None:
        """One request of so many rows for each id; the first scores, and how long each took, are kept."""
        with triton_grpc.InferenceServerClient(self.pod.triton.grpc) as client:
            for number, one in enumerate(ids):
                tensor = triton_grpc.InferInput("x", [rows, 1], "FP32")
                tensor.set_data_from_numpy(np.full((rows, 1), number if rows == 1 else 0.1, dtype=np.float32))
                started = time.monotonic()
                answer = client.infer("ctr", [tensor], request_id=one, client_timeout=LIMIT_S)
                self.seconds.append(time.monotonic() - started)
                self.answers[one] = float(answer.as_numpy("score")[0, 0])

    def ask_and_settle(self, ids: Sequence[str], before: int = 0) -> None:
        """Ask in portions that the buffer has room for; `before`: how many samples there were in this test."""
        for start in range(0, len(ids), 50):
            portion = ids[start : start + 50]
            self.ask(portion)
            before += len(portion)
            self.settled(before)

    def counted(self, name: str) -> int:
        """A counter of the agent's from the beginning of the test, or of the agent where that came later."""
        return self._page(name) - self.before.get(name, 0)

    def too_large(self) -> int:
        """How many the running agent has dropped for their size."""
        return self._page("_dropped", reason=DropReason.TOO_LARGE)

    def logged(self) -> list[dict[str, Any]]:
        """What the stream has taken of this test; not what was asked to wait for a share."""
        records = self.nats.records()[self.first :]
        return [record for record in records if not record["id"].startswith("begin-")]

    def _page(self, name: str, **labels: str) -> int:
        return int(metric(self.pod.metrics(), f"tidegate_agent_samples{name}_total", **labels))

    def settled(self, sampled: int) -> None:
        """Wait until the agent has heard of so many samples and holds none of them."""
        wait_until(
            lambda: (
                self.counted("") == sampled and not metric(self.pod.metrics(), "tidegate_agent_samples_held")
            ),
            what=f"{sampled} samples are settled",
        )

    def is_right(self, record: dict[str, Any]) -> bool:
        """Whether a record says what the client sent and was answered."""
        score = record["outputs"][0]["data"][0]
        sent = record["inputs"][0]["data"][0]
        version = int(score // STEP)
        return (
            score == self.answers[record["id"]] == sent + STEP * version
            and record["version"] == str(version)
            and (record["model"], record["inference"], record["pod"]) == ("ctr", "ads/ctr", "ctr-0")
        )


@pytest.fixture(scope="module")
def shared(triton_files: TritonFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggingPod]:
    """A pod with a buffer for about a hundred records, and a broker."""
    folder = tmp_path_factory.mktemp("pod")
    with (
        a_triton(triton_files, folder) as triton,
        a_nats(folder / "nats", f"max_payload: {MAX_PAYLOAD}") as nats,
    ):
        nats.make_stream()
        pod = ModelPod(folder, triton)
        pod.settings = {
            "TIDEGATE_AGENT_ALLOW_LOOPBACK": "true",
            "TIDEGATE_AGENT_SAMPLE_BUFFER_BYTES": str(BUFFER_BYTES),
        }
        for version in (1, 2):
            publish(pod.artefact, version)
        try:
            pod.start_agent()
            triton.start()
            yield LoggingPod(pod, nats)
        finally:
            pod.kill_agent()


@pytest.fixture
def logging_pod(shared: LoggingPod) -> LoggingPod:
    """The pod, which tests use one after the other in any order."""
    shared.begin()
    return shared


@pytest.mark.no_rerun("a lost or doubled record")
def test_each_sampled_request_is_in_the_stream_once_with_its_features_scores_and_version(
    logging_pod: LoggingPod,
) -> None:
    everything, both, tenth = logging_pod.ids(0, 200), logging_pod.ids(200, 50), logging_pod.ids(250, 400)
    logging_pod.ask_and_settle(everything)
    # Retried by a client: answered again, logged once.
    logging_pod.ask_and_settle(everything[:20], before=200)
    logging_pod.ordered(1.0, version=2)
    # A new runner may begin to serve before the agent has told it the share.
    heard = logging_pod.wait_until_logging()
    logging_pod.ask_and_settle(both, before=220 + heard)
    loads = logging_pod.pod.triton.log.read_text().count("TRITONBACKEND_ModelInstanceInitialize: ctr_")
    logging_pod.ordered(0.1, version=2)
    begun = heard + logging_pod.wait_for_share(0.1)
    logging_pod.ask(tenth)
    expected = [*everything, *both, *(one for one in tenth if is_sampled(one, 0.1))]
    logging_pod.settled(begun + len(expected) + 20)

    records = logging_pod.logged()
    assert sorted(record["id"] for record in records) == sorted(expected)
    assert [record["id"] for record in records if not logging_pod.is_right(record)] == []
    assert {record["version"] for record in records} == {"1", "2"}
    assert records[0]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]
    assert records[0]["ownId"]
    assert logging_pod.counted("_written") == begun + len(expected)
    assert (logging_pod.counted("_duplicate"), logging_pod.counted("_dropped")) == (20, 0)
    # A share is the agent's word to the runner: no version was loaded for it.
    assert (
        logging_pod.pod.triton.log.read_text().count("TRITONBACKEND_ModelInstanceInitialize: ctr_") == loads
    )
    said = logging_pod.pod.report().samples
    assert said is not None
    # That samples were dropped is said for a minute: it may be of another test.
    assert said.problem in (None, Reason.SAMPLES_DROPPED)


def test_a_request_without_an_id_is_logged_under_one_of_its_own(logging_pod: LoggingPod) -> None:
    logging_pod.ask([""] * 5)
    logging_pod.settled(5)

    records = logging_pod.logged()
    assert len({record["id"] for record in records}) == 5
    assert not any(record["ownId"] for record in records)


@pytest.mark.produces(Reason.SINK_UNREACHABLE)
def test_without_a_broker_requests_go_on_and_what_is_lost_is_counted(logging_pod: LoggingPod) -> None:
    logging_pod.ask_and_settle(logging_pod.ids(0, 200))
    quiet = sorted(logging_pod.seconds)[100]
    logging_pod.seconds.clear()
    logging_pod.nats.kill()

    logging_pod.ask(logging_pod.ids(200, 300))

    assert sorted(logging_pod.seconds)[150] < max(10 * quiet, 0.2)
    logging_pod.pod.takes_requests()
    wait_until(lambda: logging_pod.counted("") == 500, what="the agent heard of all")
    wait_until(lambda: logging_pod.counted("_dropped") > 0, what="the buffer is full")
    report = logging_pod.pod.wait_for(
        "the broker is missed",
        lambda said: said.samples is not None and said.samples.problem == Reason.SINK_UNREACHABLE,
    )
    assert report.samples is not None
    assert logging_pod.nats.url in report.samples.message
    assert report.phase is AgentPhase.READY
    held = metric(logging_pod.pod.metrics(), "tidegate_agent_samples_held_bytes")
    assert 0 < held <= BUFFER_BYTES

    logging_pod.nats.start()
    wait_until(
        lambda: not metric(logging_pod.pod.metrics(), "tidegate_agent_samples_held"),
        what="what was held is written",
    )
    logging_pod.ask(logging_pod.ids(500, 50))
    logging_pod.settled(550)

    written = [record["id"] for record in logging_pod.logged()]
    lost = logging_pod.counted("_dropped")
    assert len(written) == len(set(written)) == 550 - lost
    assert set(logging_pod.ids(0, 200)) | set(logging_pod.ids(500, 50)) <= set(written)


@pytest.mark.produces(Reason.SINK_REFUSED)
def test_a_stream_that_is_not_there_is_said_and_written_to_once_it_is(logging_pod: LoggingPod) -> None:
    logging_pod.ordered(1.0, subject="other.subject")
    logging_pod.ask(logging_pod.ids(0, 5))
    report = logging_pod.pod.wait_for(
        "the refusal is said",
        lambda said: said.samples is not None and said.samples.problem == Reason.SINK_REFUSED,
    )
    assert report.samples is not None
    assert "no stream takes the subject other.subject" in report.samples.message
    wait_until(lambda: logging_pod.counted("") == 5, what="the agent has heard of all for that subject")

    logging_pod.ordered(1.0)
    logging_pod.ask(logging_pod.ids(5, 5))
    wait_until(lambda: logging_pod.counted("_written") == 5, what="the good subject gets its own")
    assert sorted(record["id"] for record in logging_pod.logged()) == logging_pod.ids(5, 5)
    # What the other subject was to have is given up.
    wait_until(
        lambda: logging_pod.counted("_dropped") == 5,
        what="no record is held",
        evidence=lambda: {name: logging_pod.counted(name) for name in logging_pod.before},
    )


@pytest.mark.produces(Reason.SAMPLES_DROPPED)
def test_a_record_that_the_broker_is_too_small_for_is_counted_and_said(logging_pod: LoggingPod) -> None:
    before = logging_pod.too_large()
    logging_pod.ask(logging_pod.ids(0, 1), rows=128)  # more JSON than MAX_PAYLOAD
    logging_pod.settled(1)

    assert logging_pod.too_large() == before + 1
    report = logging_pod.pod.report()
    assert report.samples is not None
    assert report.samples.problem == Reason.SAMPLES_DROPPED


def test_no_order_no_log(logging_pod: LoggingPod) -> None:
    logging_pod.ordered(None)
    assert logging_pod.pod.report().samples is None
    heard = logging_pod.wait_for_silence()
    logging_pod.ask(logging_pod.ids(0, 50))
    assert at_rest(lambda: logging_pod.counted(""), what="samples that the agent has heard of") == heard
    assert logging_pod.logged() == []


def test_an_agent_that_is_killed_and_started_again_goes_on_logging(logging_pod: LoggingPod) -> None:
    logging_pod.ask(logging_pod.ids(0, 20))
    logging_pod.settled(20)
    logging_pod.pod.kill_agent()
    logging_pod.ask(logging_pod.ids(20, 20))  # nobody listens: they wait in the runner
    logging_pod.start_agent()
    wait_until(lambda: logging_pod.counted("_written") >= 20, what="the runner came back")
    logging_pod.pod.stop_agent()

    assert sorted(record["id"] for record in logging_pod.logged()) == sorted(logging_pod.ids(0, 40))
