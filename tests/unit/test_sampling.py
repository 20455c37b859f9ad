"""Which requests are sampled, what the wire carries, and that nobody waits for the log."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from builders.runner_agent import RunnerAgent
from builders.waiting import wait_until
from tidegate_dataplane.sampling.frames import (
    FRAME_LENGTHS,
    MAX_BODY_BYTES,
    DropReason,
    SampleLosses,
    SampleRecord,
    SampleTensor,
    encode_losses,
    encode_record,
    encode_texts,
    parse_frame,
)
from tidegate_dataplane.sampling.sampler import RECORD_BYTES, Sampler, is_sampled

IDS = [f"request-{number}" for number in range(20_000)]
X = {"x": np.ones((2, 3), dtype=np.float32)}
SCORE = {"score": np.array([[0.25], [0.75]], dtype=np.float32)}


def a_record(**changes: object) -> SampleRecord:
    fields: dict[str, object] = {
        "id": "r-1",
        "own_id": True,
        "model": "ctr",
        "version": "3",
        "time_s": 1.5,
        "inputs": (SampleTensor("x", "FP32", (1, 2), np.array([1, 2], dtype="<f4").tobytes()),),
        "outputs": (SampleTensor("tag", "BYTES", (2,), encode_texts(["é", b"\xff"])),),
    }
    return SampleRecord(**{**fields, **changes})  # type: ignore[arg-type]


def parsed(frame: bytes) -> SampleRecord | SampleLosses:
    header, _ = FRAME_LENGTHS.unpack(frame[: FRAME_LENGTHS.size])
    rest = frame[FRAME_LENGTHS.size :]
    return parse_frame(rest[:header], rest[header:])


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_sample_has_its_share_of_any_ids(share: float) -> None:
    for ids in (IDS, [uuid.UUID(int=number).hex for number in range(20_000)]):
        taken = sum(is_sampled(one, share) for one in ids)
        # Five standard deviations of a fair choice; the ids are fixed, so this holds always or never.
        assert abs(taken - share * len(ids)) < 5 * (share * (1 - share) * len(ids)) ** 0.5


def test_a_choice_is_the_same_everywhere_and_a_smaller_sample_is_part_of_a_larger() -> None:
    # Written down: another version of the code, or another machine, must choose the same.
    assert [one for one in IDS[:40] if is_sampled(one, 0.1)] == KNOWN
    assert {one for one in IDS if is_sampled(one, 0.05)} < {one for one in IDS if is_sampled(one, 0.1)}


def test_everything_and_nothing() -> None:
    assert all(is_sampled(one, 1.0) for one in IDS)
    assert not any(is_sampled(one, 0.0) for one in IDS)


def test_a_record_arrives_as_it_was_sent() -> None:
    frame = encode_record(a_record())
    assert frame is not None
    assert parsed(frame) == a_record()
    assert parsed(encode_losses(SampleLosses({DropReason.BUFFER_FULL.value: 3}))) == SampleLosses(
        {"BufferFull": 3}
    )


def test_a_record_larger_than_a_frame_is_none() -> None:
    tensor = SampleTensor("x", "UINT8", (MAX_BODY_BYTES + 1,), bytes(MAX_BODY_BYTES + 1))
    assert encode_record(a_record(inputs=(tensor,))) is None
    assert encode_record(a_record(id="x" * 70_000)) is None


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"{}", b""),
        (b"[]", b""),
        (b'"text"', b""),
        (b'{"dropped": {"Stolen": 1}}', b""),
        (
            b'{"id":"a","own":true,"model":"m","version":"1","time":1,"inputs":[["x","FP32",[1],4]],"outputs":[]}',
            b"",
        ),
        (
            b'{"id":"a","own":true,"model":"m","version":"1","time":1,"inputs":[["x","FP32",[1],-1]],"outputs":[]}',
            b"",
        ),
    ],
)
def test_a_frame_that_is_none_is_refused(header: bytes, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_frame(header, body)


def test_a_sampled_request_is_copied_and_reaches_the_agent(tmp_path: Path) -> None:
    with RunnerAgent(tmp_path, share=1.0) as agent, agent.sampler() as sampler:
        features = {"x": X["x"].copy()}
        sampler.offer_sample("r-1", features, SCORE)
        features["x"][:] = 9.0  # the server gives the memory to the next request
        sampler.offer_sample("", X, SCORE)

        first, second = agent.records(2)

    assert (first.id, first.own_id, first.model, first.version) == ("r-1", True, "ctr", "3")
    assert np.frombuffer(first.inputs[0].data, dtype="<f4").tolist() == [1.0] * 6
    assert (first.inputs[0].datatype, first.inputs[0].shape) == ("FP32", (2, 3))
    assert not second.own_id
    assert len(second.id) == 32


def test_nothing_is_sampled_without_an_agent_or_without_a_share(tmp_path: Path) -> None:
    alone = Sampler("ctr", "3", path=tmp_path / "samples.sock")
    alone.start()
    assert not alone.is_active
    alone.finish_sending()
    with RunnerAgent(tmp_path, share=0.0) as agent, agent.sampler() as sampler:
        assert not sampler.is_active


def test_another_share_holds_from_the_agents_word_on(tmp_path: Path) -> None:
    with RunnerAgent(tmp_path, share=0.0) as agent, agent.sampler() as sampler:
        agent.tell(share=1.0)
        wait_until(lambda: sampler.is_active, what="the share arrived")
        sampler.offer_sample("r-1", X, SCORE)
        assert agent.records(1)[0].id == "r-1"
        agent.tell(share=0.0)
        wait_until(lambda: not sampler.is_active, what="the share arrived")


def test_an_agent_that_reads_nothing_costs_records_and_no_time(tmp_path: Path) -> None:
    big = {"x": np.zeros((1, 25_000), dtype=np.float32)}
    size = RECORD_BYTES + big["x"].nbytes + SCORE["score"].nbytes
    with (
        RunnerAgent(tmp_path, share=1.0, reading=False) as agent,
        agent.sampler(most_bytes=10 * size) as sampler,
    ):
        started = time.monotonic()
        for number in range(500):
            sampler.offer_sample(f"r-{number}", big, SCORE)
        spent = time.monotonic() - started
        agent.read()
        # Ten in the buffer, one in the writer's hand, and what the kernel takes of a socket.
        wait_until(lambda: len(agent.taken) + agent.lost["BufferFull"] == 500, what="all are told of")

    assert agent.lost["BufferFull"] > 450
    assert spent < 5.0  # 500 copies; a single wait for the agent would never have ended


@pytest.mark.parametrize("rows", [MAX_BODY_BYTES // 4 + 1, 4 << 20])
def test_a_request_too_large_for_a_record_is_told_of_at_once_whatever_the_buffer_holds(
    tmp_path: Path, rows: int
) -> None:
    with RunnerAgent(tmp_path, share=1.0) as agent, agent.sampler() as sampler:
        sampler.offer_sample("large", {"x": np.zeros((rows, 1), dtype=np.float32)}, {})
        wait_until(lambda: agent.lost["TooLarge"] == 1, what="the large one is told of")
        sampler.offer_sample("texts", {"x": np.full((rows, 1), b"", dtype=object)}, {})
        wait_until(lambda: agent.lost["TooLarge"] == 2, what="the texts are told of")
        sampler.offer_sample("small", X, SCORE)
        assert agent.records(1)[0].id == "small"
        assert agent.lost == {"TooLarge": 2}


def test_what_an_agent_took_with_it_is_counted(tmp_path: Path) -> None:
    with RunnerAgent(tmp_path, share=1.0) as agent, agent.sampler() as sampler:
        for number in range(5):
            sampler.offer_sample(f"r-{number}", X, SCORE)
        agent.records(5)
        agent.tell(share=1.0, done=3)
        agent.restart()
        sampler.offer_sample("r-5", X, SCORE)
        assert agent.records(6)[5].id == "r-5"
        wait_until(lambda: agent.lost["AgentEnded"] == 2, what="the two are told of")


def test_what_is_left_at_the_end_is_sent(tmp_path: Path) -> None:
    before = threading.active_count()
    with RunnerAgent(tmp_path, share=1.0) as agent:
        with agent.sampler() as sampler:
            for number in range(100):
                sampler.offer_sample(f"r-{number}", X, SCORE)
        assert [record.id for record in agent.records(100)] == [f"r-{number}" for number in range(100)]
    wait_until(lambda: threading.active_count() <= before, what="the threads ended")


KNOWN = ["request-15", "request-17", "request-39"]
