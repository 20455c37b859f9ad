"""The agent's half of the sample log: lines, buffer, retries, files; sinks are pretended, the rest is real."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from builders.desired import a_desired_state
from builders.fake_clock import FakeClock
from builders.metrics_page import metric
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.samples.buffer import (
    RECORD_BYTES,
    BufferedRecord,
    Portion,
    RecentIds,
    SampleBuffer,
)
from tidegate_dataplane.agent.samples.file_sink import ClaimStore, FileSampleSink
from tidegate_dataplane.agent.samples.lines import SampleOrigin, render_line
from tidegate_dataplane.agent.samples.log import SampleLog
from tidegate_dataplane.agent.samples.nats_sink import message_id
from tidegate_dataplane.agent.samples.outlet import SampleOutlet
from tidegate_dataplane.agent.samples.sink import SinkError, WriteOutcome
from tidegate_dataplane.agent.samples.sink_factory import make_sink_opener
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import SampleOrder, SampleProblem
from tidegate_dataplane.sampling.frames import SampleRecord, SampleTensor, encode_texts

ORIGIN = SampleOrigin("ads/ctr", "ctr-0")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORDER = SampleOrder(share=0.5, url="nats://nats.ads:4222", subject="s")


def a_record(identity: str = "r-1", *inputs: SampleTensor) -> SampleRecord:
    score = SampleTensor("score", "FP32", (1, 1), np.array([0.1], dtype="<f4").tobytes())
    return SampleRecord(identity, True, "ctr", "3", 1_700_000_000.25, inputs, (score,))


def line(*inputs: SampleTensor) -> dict[str, object]:
    said: dict[str, object] = json.loads(render_line(a_record("r-1", *inputs), ORIGIN))
    return said


class PretendedSink:
    """Writes into a list, unless it is told what to answer."""

    portion = Portion(records=10, bytes=1 << 20, age_s=0.0)

    def __init__(self, *answers: Sequence[WriteOutcome] | Exception) -> None:
        self.answers = list(answers)
        self.written: list[str] = []
        self.attempts = 0
        self.closed = False

    async def write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome]:
        self.attempts += 1
        fates: Sequence[WriteOutcome] | Exception = (
            self.answers.pop(0) if self.answers else [WriteOutcome.WRITTEN] * len(portion)
        )
        if isinstance(fates, Exception):
            raise fates
        self.written += [
            held.record.id for held, fate in zip(portion, fates, strict=True) if fate is WriteOutcome.WRITTEN
        ]
        return fates

    async def close(self) -> None:
        self.closed = True


class Unreachable(PretendedSink):
    """Never writes."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = asyncio.Event()

    async def write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome]:
        self.attempts += 1
        self.tried.set()
        raise SinkError(SampleProblem.SINK_UNREACHABLE, "it is away")


def test_a_line_is_what_the_inference_protocol_writes() -> None:
    ids = SampleTensor("ids", "INT64", (1, 2), np.array([[1, 2**60]], dtype="<i8").tobytes())
    text = SampleTensor("text", "BYTES", (2,), encode_texts(["é", b"\xff"]))
    flag = SampleTensor("flag", "BOOL", (1,), b"\x01")

    assert line(ids, text, flag) == {
        "id": "r-1",
        "ownId": True,
        "inference": "ads/ctr",
        "model": "ctr",
        "version": "3",
        "pod": "ctr-0",
        "time": "2023-11-14T22:13:20.250000Z",
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2**60]},
            {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["é", "\ufffd"]},
            {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]},
        ],
        "outputs": [{"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [float(np.float32(0.1))]}],
    }


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_every_number_comes_back_exactly(dtype: str) -> None:
    kind = np.dtype(f"<{dtype}")
    values = np.array([0, 1, 3, 100], dtype=kind) / (7 if kind.kind == "f" else 1)
    values = values.astype(kind)
    name = {"f": "FP", "i": "INT", "u": "UINT"}[kind.kind] + str(kind.itemsize * 8)
    said = line(SampleTensor("x", name, (4,), values.tobytes()))["inputs"]
    assert np.array(said[0]["data"], dtype=kind).tobytes() == values.tobytes()  # type: ignore[index]


def test_numbers_that_json_has_not_are_words() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], dtype="<f4")
    said = line(SampleTensor("x", "FP32", (4,), values.tobytes()))["inputs"]
    assert said[0]["data"] == ["NaN", "Infinity", "-Infinity", 1.0]  # type: ignore[index]


@pytest.mark.parametrize(
    "tensor",
    [
        SampleTensor("x", "FP32", (1,), b"123"),
        SampleTensor("x", "COMPLEX64", (1,), bytes(8)),
        SampleTensor("x", "BYTES", (1,), b"\x01\x00"),
    ],
)
def test_a_tensor_that_cannot_be_written_is_refused(tensor: SampleTensor) -> None:
    with pytest.raises(ValueError, match=r"x|text"):
        line(tensor)


def test_a_message_id_tells_inferences_apart_and_is_a_plain_header() -> None:
    assert message_id("ads/ctr", "r") != message_id("ads/ctr-b", "r")
    assert message_id("ads/ctr", "r\r\nNats-Expected: x").isalnum()


async def test_a_buffer_holds_so_many_bytes_and_no_more() -> None:
    settled: list[int] = []
    buffer = SampleBuffer(3 * (RECORD_BYTES + 100), FakeClock().monotonic)
    taken = [
        buffer.offer_record(a_record(str(number)), 100, lambda: settled.append(1)) for number in range(5)
    ]
    assert taken == [True, True, True, False, False]

    portion = await buffer.take_portion(Portion(2, 1 << 20, 0.0))
    assert [held.record.id for held in portion] == ["0", "1"]
    # What is being written still takes room.
    assert not buffer.offer_record(a_record("5"), 100, lambda: None)
    buffer.release_record(portion[0])
    assert buffer.offer_record(a_record("6"), 100, lambda: None)
    assert settled == [1]


async def test_a_portion_waits_until_it_is_whole_or_old() -> None:
    clock = FakeClock()
    buffer = SampleBuffer(1 << 20, clock.monotonic)
    portion = Portion(records=2, bytes=1 << 20, age_s=60.0)
    buffer.offer_record(a_record("0"), 1, lambda: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await buffer.take_portion(portion)
    buffer.offer_record(a_record("1"), 1, lambda: None)
    assert len(await buffer.take_portion(portion)) == 2
    buffer.offer_record(a_record("2"), 1, lambda: None)
    await clock.advance(61)
    assert len(await buffer.take_portion(portion)) == 1
    buffer.offer_record(a_record("3"), 1, lambda: None)
    buffer.close()
    assert len(await buffer.take_portion(portion)) == 1
    assert await buffer.take_portion(portion) == []


def test_the_ids_of_the_last_records_are_known() -> None:
    seen = RecentIds(max_ids=2)
    for one in ("a", "b", "c"):
        seen.add(one)
    assert [one in seen for one in ("a", "b", "c")] == [False, True, True]


def outlet_to(sink: PretendedSink, most_bytes: int = 1 << 20) -> tuple[SampleOutlet, AgentMetrics]:
    metrics = AgentMetrics()
    buffer = SampleBuffer(most_bytes, asyncio.get_running_loop().time)
    return SampleOutlet(sink, buffer, metrics, lambda why: metrics.samples_dropped.labels(why).inc()), metrics


def counted(metrics: AgentMetrics, name: str, **labels: str) -> float:
    return metric(metrics.render_text().decode(), f"tidegate_agent_samples{name}", **labels)


async def test_what_was_not_written_is_tried_again_and_the_fates_are_counted() -> None:
    away = SinkError(SampleProblem.SINK_UNREACHABLE, "it is away")
    fates = [
        WriteOutcome.WRITTEN,
        WriteOutcome.DUPLICATE,
        WriteOutcome.TOO_LARGE,
        WriteOutcome.RETRY,
        WriteOutcome.UNCONFIRMED,
    ]
    sink = PretendedSink(away, RuntimeError("of a library"), fates)
    outlet, metrics = outlet_to(sink)
    for number in range(5):
        assert outlet.offer_record(a_record(str(number)), 1, lambda: None) is None
    await outlet.finish(5.0)

    assert sink.written == ["0", "3"]
    assert sink.attempts == 4
    assert outlet.problem is None
    assert sink.closed
    assert counted(metrics, "_written_total") == 2
    assert counted(metrics, "_duplicate_total") == 1
    assert counted(metrics, "_dropped_total", reason="TooLarge") == 1
    assert counted(metrics, "_dropped_total", reason="Unconfirmed") == 1
    assert counted(metrics, "_held") == 0


async def test_a_record_that_is_given_up_does_not_say_that_the_sink_works(tmp_path: Path) -> None:
    refused = SinkError(SampleProblem.SINK_REFUSED, "maximum messages exceeded")
    outlet, metrics = outlet_to(PretendedSink(refused, [WriteOutcome.UNCONFIRMED]))
    assert outlet.offer_record(a_record(), 1, lambda: None) is None
    await outlet.finish(5.0)
    assert outlet.problem is refused
    assert counted(metrics, "_dropped_total", reason="Unconfirmed") == 1


async def test_a_sink_that_stays_away_costs_what_is_held_and_says_so() -> None:
    sink = Unreachable()
    outlet, metrics = outlet_to(sink, most_bytes=3 * (RECORD_BYTES + 1))
    settled: list[int] = []
    for number in range(3):
        assert outlet.offer_record(a_record(str(number)), 1, lambda: settled.append(1)) is None
    await sink.tried.wait()
    await asyncio.sleep(0)  # for the outlet to hear of it
    assert outlet.offer_record(a_record("3"), 1, lambda: None) == "SinkDown"
    await outlet.finish(0.01)

    assert counted(metrics, "_dropped_total", reason="SinkDown") == 3
    assert len(settled) == 3
    assert counted(metrics, "_held_bytes") == 0


async def test_a_file_is_whole_and_named_for_good(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    uri = parse_uri("pvc://disk/ctr/log")
    sink = FileSampleSink(uri, ORIGIN, lambda: ClaimStore(uri, tmp_path), Portion(2, 1, 1.0), now=lambda: NOW)
    held = [BufferedRecord(a_record(str(number)), 1, 0.0, lambda: None) for number in range(2)]
    bad = BufferedRecord(a_record("bad", SampleTensor("x", "FP32", (1,), b"1")), 1, 0.0, lambda: None)

    assert await sink.write([*held, bad]) == (
        WriteOutcome.WRITTEN,
        WriteOutcome.WRITTEN,
        WriteOutcome.TOO_LARGE,
    )
    assert await sink.write(held[:1]) == (WriteOutcome.WRITTEN,)

    files = files_below(tmp_path)
    folder = tmp_path / "disk/ctr/log/2026-01-02/03"
    assert files == [folder / f"ads.ctr-0.20260102T030405000000.00000{number}.jsonl.gz" for number in (1, 2)]
    lines = gzip.decompress(files[0].read_bytes()).splitlines()
    assert [json.loads(one)["id"] for one in lines] == ["0", "1"]


async def test_a_file_that_could_not_be_written_is_written_again_under_its_name(tmp_path: Path) -> None:
    uri = parse_uri("pvc://disk/log")
    sink = FileSampleSink(uri, ORIGIN, lambda: ClaimStore(uri, tmp_path), Portion(2, 1, 1.0), now=lambda: NOW)
    held = [BufferedRecord(a_record(), 1, 0.0, lambda: None)]
    with pytest.raises(SinkError, match="claim disk is not mounted"):
        await sink.write(held)
    (tmp_path / "disk").mkdir()
    assert await sink.write(held) == (WriteOutcome.WRITTEN,)
    assert [path.name.split(".")[3] for path in files_below(tmp_path)] == ["000001"]


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def a_log(tmp_path: Path, sink: PretendedSink) -> SampleLog:
    opened: list[SampleOrder] = []

    def open_sink(order: SampleOrder, origin: SampleOrigin) -> PretendedSink:
        opened.append(order)
        return sink

    log = SampleLog(
        AgentSettings(run_dir=tmp_path), AgentMetrics(), open_sink, RunnerRegistry(AgentMetrics())
    )
    log.opened = opened  # type: ignore[attr-defined]
    return log


async def test_another_share_opens_no_other_sink(tmp_path: Path) -> None:
    log = a_log(tmp_path, PretendedSink())
    for share in (0.5, 0.1):
        log.follow_order(a_desired_state(samples=ORDER.model_copy(update={"share": share})))
    log.follow_order(a_desired_state(samples=ORDER.model_copy(update={"subject": "other"})))
    await log.finish_writing()
    assert [order.subject for order in log.opened] == ["s", "other"]  # type: ignore[attr-defined]


async def test_a_report_says_how_the_log_is(tmp_path: Path) -> None:
    log = a_log(tmp_path, Unreachable())
    assert log.report(native=False) is None
    log.follow_order(a_desired_state(samples=ORDER))
    well, unsupported = log.report(native=False), log.report(native=True)
    log.follow_order(a_desired_state())
    await log.finish_writing()
    assert well is not None
    assert well.problem is None
    assert unsupported is not None
    assert unsupported.problem is SampleProblem.SAMPLING_UNSUPPORTED
    assert "remove spec.logging" in unsupported.message
    assert log.report(native=False) is None


async def test_a_place_that_is_not_allowed_is_refused_and_nothing_is_sampled(tmp_path: Path) -> None:
    log = SampleLog(
        AgentSettings(run_dir=tmp_path),
        AgentMetrics(),
        make_sink_opener(AgentSettings(), {}),
        RunnerRegistry(AgentMetrics()),
    )
    log.follow_order(a_desired_state(samples=SampleOrder(share=1, url="file:///etc")))
    report = log.report(native=False)
    await log.finish_writing()
    assert report is not None
    assert report.problem is SampleProblem.SINK_REFUSED
    assert "use pvc://, s3:// or gs://" in report.message


async def test_a_broker_at_a_link_local_address_is_refused(tmp_path: Path) -> None:
    order = SampleOrder(share=1, url="nats://169.254.169.254:4222", subject="s")
    sink = make_sink_opener(AgentSettings(), {})(order, ORIGIN)
    with pytest.raises(SinkError, match="a link-local address") as caught:
        await sink.write([BufferedRecord(a_record(), 1, 0.0, lambda: None)])
    assert caught.value.problem is SampleProblem.SINK_REFUSED
