"""The NATS sink against a real server: credentials, permissions, limits, and a record of two pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy

from builders.waiting import LONGEST_S
from fixtures.nats import SUBJECT, RunningNats, a_nats, let_nats_stall
from tidegate_dataplane.agent.artefacts.credentials import read_credentials
from tidegate_dataplane.agent.samples.buffer import BufferedRecord
from tidegate_dataplane.agent.samples.lines import SampleOrigin
from tidegate_dataplane.agent.samples.nats_sink import NatsSampleSink
from tidegate_dataplane.agent.samples.sink import SinkError, WriteOutcome
from tidegate_dataplane.contract import SampleOrder, SampleProblem
from tidegate_dataplane.sampling.frames import SampleRecord, SampleTensor

ORIGIN = SampleOrigin("ads/ctr", "ctr-0")
PASSWORD = "correct-horse-battery"
SERVER = f"""
max_payload: 64KB
authorization {{
  users: [
    {{ user: owner, password: owner-of-it-all }}
    {{ user: writer, password: "{PASSWORD}",
       permissions: {{ publish: ["samples.*"], subscribe: ["_INBOX.>"] }} }}
  ]
}}
"""


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    let_nats_stall(monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNats]:
    folder = tmp_path_factory.mktemp("nats")
    with a_nats(folder, SERVER, user="owner", password="owner-of-it-all") as nats:
        nats.make_stream()
        yield nats


def a_record(identity: str, size: int = 4) -> BufferedRecord:
    tensor = SampleTensor("x", "UINT8", (size,), bytes(size))
    return BufferedRecord(
        SampleRecord(identity, True, "ctr", "3", 1.0, (tensor,), ()), size, 0.0, lambda: None
    )


def write(
    server: RunningNats,
    secret: Path,
    records: Sequence[BufferedRecord],
    *,
    pod: str = "ctr-0",
    inference: str = "ads/ctr",
    subject: str = SUBJECT,
) -> Sequence[WriteOutcome]:
    return asyncio.run(written(server.url, secret, records, SampleOrigin(inference, pod), subject))


async def written(
    url: str,
    secret: Path,
    records: Sequence[BufferedRecord],
    origin: SampleOrigin = ORIGIN,
    subject: str = SUBJECT,
) -> Sequence[WriteOutcome]:
    sink = NatsSampleSink(
        SampleOrder(share=1, url=url, subject=subject, secret="samples-writer"),
        origin,
        lambda: read_credentials(secret, "samples-writer", {}),
        secret,
        allow_loopback=True,
    )
    try:
        return await sink.write(records)
    finally:
        await sink.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "nats-username").write_text("writer")
    (tmp_path / "nats-password").write_text(PASSWORD)
    return tmp_path


def test_a_record_that_two_pods_answered_is_in_the_stream_once_and_one_of_another_inference_too(
    server: RunningNats, secret: Path
) -> None:
    before = server.count()
    assert write(server, secret, [a_record("twice")]) == [WriteOutcome.WRITTEN]
    assert write(server, secret, [a_record("twice")], pod="ctr-1") == [WriteOutcome.DUPLICATE]
    assert write(server, secret, [a_record("twice")], inference="ads/ctr-mirror") == [WriteOutcome.WRITTEN]
    assert server.count() - before == 2


def test_a_record_that_was_tried_before_and_is_there_counts_as_written(
    server: RunningNats, secret: Path
) -> None:
    first, again = a_record("uncertain"), a_record("uncertain")
    write(server, secret, [first])
    again.tried_s = time.monotonic()
    assert write(server, secret, [again]) == [WriteOutcome.WRITTEN]
    late = a_record("late")
    late.tried_s = again.tried_s - 200
    assert write(server, secret, [late]) == [WriteOutcome.UNCONFIRMED]


def test_a_record_larger_than_the_server_takes_is_given_up_and_the_others_are_written(
    server: RunningNats, secret: Path
) -> None:
    records = [a_record("small"), a_record("large", 70_000), a_record("last")]
    assert write(server, secret, records) == [
        WriteOutcome.WRITTEN,
        WriteOutcome.TOO_LARGE,
        WriteOutcome.WRITTEN,
    ]


def test_a_record_larger_than_the_stream_takes_is_given_up_and_the_others_are_written(
    server: RunningNats, secret: Path
) -> None:
    server.make_stream("SMALL", "samples.small", max_msg_size=2_000)
    records = [a_record("first"), a_record("large", 4_000), a_record("last")]
    fates = write(server, secret, records, subject="samples.small")
    assert fates == [WriteOutcome.WRITTEN, WriteOutcome.TOO_LARGE, WriteOutcome.WRITTEN]


def test_a_record_that_the_stream_refuses_is_tried_again_for_a_while_and_then_given_up(
    server: RunningNats, secret: Path
) -> None:
    server.make_stream("FULL", "samples.full", max_msgs=1, discard=DiscardPolicy.NEW)
    refused = a_record("refused")
    assert write(server, secret, [a_record("fits")], subject="samples.full") == [WriteOutcome.WRITTEN]
    with pytest.raises(SinkError, match="maximum messages exceeded") as caught:
        write(server, secret, [refused], subject="samples.full")
    assert caught.value.problem is SampleProblem.SINK_REFUSED
    assert refused.refused_s is not None
    refused.refused_s -= 200
    assert write(server, secret, [refused], subject="samples.full") == [WriteOutcome.UNCONFIRMED]


@pytest.mark.parametrize("words", [b"thanks", b"[]", b"{}", b'{"error": "no"}'])
async def test_an_answer_that_is_no_acknowledgement_is_refused_and_says_where_it_comes_from(
    server: RunningNats, secret: Path, words: bytes
) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(words)

    someone = await nats.connect(server.url, connect_timeout=int(LONGEST_S), **server.user)
    records = [a_record("one"), a_record("two")]
    try:
        await someone.subscribe("samples.else", cb=answer)
        await someone.flush()
        with pytest.raises(
            SinkError, match=r"something other than a stream answers on samples\.else"
        ) as caught:
            await written(server.url, secret, records, subject="samples.else")
    finally:
        await someone.close()
    assert caught.value.problem is SampleProblem.SINK_REFUSED
    # A stream may have them as well, so they are not tried for ever.
    assert all(record.tried_s is not None for record in records)


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ({"token": PASSWORD}, "has neither nats-token nor nats-username and nats-password"),
        (
            {"username": "writer", "password": PASSWORD},
            "has neither nats-token nor nats-username and nats-password",
        ),
        ({}, "does not exist, or has neither nats-token"),
        ({"nats-username": "writer"}, "has nats-username and no nats-password"),
        ({"nats-token": PASSWORD, "tls.crt": "c"}, "has tls.crt and no tls.key"),
    ],
)
@pytest.mark.no_rerun("a secret is seen")
async def test_a_secret_that_was_not_made_for_nats_is_never_sent(
    tmp_path: Path, keys: dict[str, str], missing: str
) -> None:
    heard: list[str] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append("a connection")
        writer.close()

    for name, value in keys.items():
        (tmp_path / name).write_text(value)
    async with await asyncio.start_server(hear, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(SinkError, match=f"Secret samples-writer of the namespace .*{missing}") as caught:
            await written(f"nats://127.0.0.1:{port}", tmp_path, [a_record("r")])
    assert caught.value.problem is SampleProblem.SINK_REFUSED
    assert PASSWORD not in caught.value.message
    assert heard == []


def test_a_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "nats-token").write_text(PASSWORD)
    with a_nats(tmp_path / "nats", f'authorization {{ token: "{PASSWORD}" }}', token=PASSWORD) as server:
        server.make_stream()
        assert write(server, tmp_path, [a_record("r")]) == [WriteOutcome.WRITTEN]


def test_a_certificate_that_cannot_be_read_is_refused(server: RunningNats, secret: Path) -> None:
    for name in ("nats-username", "nats-password"):
        (secret / name).unlink()
    (secret / "ca.crt").write_text("no certificate")
    with pytest.raises(SinkError, match=r"ca\.crt, tls\.crt or tls\.key in Secret samples-writer") as caught:
        write(server, secret, [a_record("r")])
    assert caught.value.problem is SampleProblem.SINK_REFUSED


async def test_a_port_that_there_is_not_is_refused(secret: Path) -> None:
    with pytest.raises(SinkError, match="Port out of range") as caught:
        await written("nats://127.0.0.1:70000", secret, [a_record("r")])
    assert caught.value.problem is SampleProblem.SINK_REFUSED


@pytest.mark.no_rerun("a secret is seen")
def test_wrong_credentials_are_refused_and_never_said(server: RunningNats, secret: Path) -> None:
    (secret / "nats-password").write_text("wrong-battery-staple")
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
