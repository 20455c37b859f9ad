"""The NATS sink against a real server: credentials, permissions, limits, and a record of two pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fixtures.nats import SUBJECT, RunningNats, a_nats
from tidegate_dataplane.agent.artefacts.credentials import read_credentials
from tidegate_dataplane.agent.samples.buffer import Held
from tidegate_dataplane.agent.samples.lines import Origin
from tidegate_dataplane.agent.samples.nats import NatsSink
from tidegate_dataplane.agent.samples.sink import Fate, SinkError
from tidegate_dataplane.contract import SampleOrder, SampleProblem
from tidegate_dataplane.sampling.frames import Record, Tensor

PASSWORD = "correct-horse-battery"
SERVER = f"""
max_payload: 64KB
authorization {{
  users: [
    {{ user: owner, password: owner-of-it-all }}
    {{ user: writer, password: "{PASSWORD}",
       permissions: {{ publish: ["{SUBJECT}"], subscribe: ["_INBOX.>"] }} }}
  ]
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNats]:
    folder = tmp_path_factory.mktemp("nats")
    with a_nats(folder, SERVER, user="owner", password="owner-of-it-all") as nats:
        nats.make_stream()
        yield nats


def a_record(identity: str, size: int = 4) -> Held:
    tensor = Tensor("x", "UINT8", (size,), bytes(size))
    return Held(Record(identity, True, "ctr", "3", 1.0, (tensor,), ()), size, 0.0, lambda: None)


def write(
    server: RunningNats,
    secret: Path,
    records: Sequence[Held],
    *,
    pod: str = "ctr-0",
    inference: str = "ads/ctr",
    subject: str = SUBJECT,
) -> Sequence[Fate]:
    async def run() -> Sequence[Fate]:
        sink = NatsSink(
            SampleOrder(share=1, url=server.url, subject=subject, secret="samples-writer"),
            Origin(inference, pod),
            lambda: read_credentials(secret, "samples-writer", {}),
            secret,
            allow_loopback=True,
        )
        try:
            return await sink.write(records)
        finally:
            await sink.close()

    return asyncio.run(run())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "username").write_text("writer")
    (tmp_path / "password").write_text(PASSWORD)
    return tmp_path


def test_a_record_that_two_pods_answered_is_in_the_stream_once_and_one_of_another_inference_too(
    server: RunningNats, secret: Path
) -> None:
    before = server.count()
    assert write(server, secret, [a_record("twice")]) == [Fate.WRITTEN]
    assert write(server, secret, [a_record("twice")], pod="ctr-1") == [Fate.DUPLICATE]
    assert write(server, secret, [a_record("twice")], inference="ads/ctr-mirror") == [Fate.WRITTEN]
    assert server.count() - before == 2


def test_a_record_that_was_tried_before_and_is_there_counts_as_written(
    server: RunningNats, secret: Path
) -> None:
    first, again = a_record("uncertain"), a_record("uncertain")
    write(server, secret, [first])
    again.tried_s = time.monotonic()
    assert write(server, secret, [again]) == [Fate.WRITTEN]
    late = a_record("late")
    late.tried_s = again.tried_s - 200
    assert write(server, secret, [late]) == [Fate.UNCONFIRMED]


def test_a_record_larger_than_the_server_takes_is_given_up_and_the_others_are_written(
    server: RunningNats, secret: Path
) -> None:
    records = [a_record("small"), a_record("large", 70_000), a_record("last")]
    assert write(server, secret, records) == [Fate.WRITTEN, Fate.TOO_LARGE, Fate.WRITTEN]


@pytest.mark.parametrize("kept", ["username", None])
def test_wrong_credentials_are_refused_and_never_said(
    server: RunningNats, secret: Path, kept: str | None
) -> None:
    (secret / "password").write_text("wrong-battery-staple")
    if kept is None:
        for name in ("username", "password"):
            (secret / name).unlink()
    for _ in range(20):
        with pytest.raises(SinkError) as caught:
            write(server, secret, [a_record("r")])
        # The server hangs up after its words, and now and then before they were read.
        if caught.value.problem is SampleProblem.SINK_REFUSED:
            break
    assert caught.value.problem is SampleProblem.SINK_REFUSED
    assert "Secret samples-writer of the namespace" in caught.value.message
    assert "wrong-battery-staple" not in caught.value.message


def test_a_subject_that_may_not_be_published_is_refused_in_the_servers_words(
    server: RunningNats, secret: Path
) -> None:
    with pytest.raises(SinkError) as caught:
        write(server, secret, [a_record("r")], subject="other.subject")
    assert caught.value.problem is SampleProblem.SINK_REFUSED
    assert "permissions violation" in caught.value.message.lower()
