"""One call of a pipeline over a real socket: whatever the other side does, there is an answer or a reason in time."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from builders.waiting import wait_until
from tidegate_dataplane.contract import (
    DEFAULTED,
    NOT_CURRENT,
    CandidateCut,
    ModelCall,
    PipelinePart,
    PipelinePlan,
    TensorSpec,
)
from tidegate_dataplane.pipeline import call_client
from tidegate_dataplane.pipeline.connection import HttpConnection
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.pipeline import PipelineRunner
from tidegate_dataplane.pipeline.rows import RequestBatch
from tidegate_dataplane.pipeline.wire import LENGTH_HEADER
from tidegate_dataplane.pipeline.worker import CallJob, CallWorker, run_calls

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 1))
Y = TensorSpec(name="y", dtype="FP32", shape=(-1, 1))
ROWS = {"x": np.array([[1.0], [2.0]], dtype=np.float32)}
TENSOR = {"name": "y", "datatype": "FP32", "shape": [2, 1], "parameters": {"binary_data_size": 8}}


class Server:
    """Takes connections on loopback; `says` gives the bytes of each answer, None hangs up, and counts requests."""

    def __init__(self, says: Callable[[int], bytes | None]) -> None:
        self._says = says
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests = 0
        self.connections = 0
        self.closed = threading.Event()
        self.trickles = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while self._request(connection):
                self.requests += 1
                answer = self._says(self.requests)
                if answer is None:
                    return
                pieces = [bytes([one]) for one in answer] if self.trickles else [answer]
                for piece in pieces:
                    connection.sendall(piece)
                    if self.trickles and self.closed.wait(0.05):
                        return

    def _request(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(65536)
            if not piece:
                return False
            head += piece
        head, _, body = head.partition(b"\r\n\r\n")
        lines = (line.partition(b":") for line in head.lower().splitlines())
        length = next(int(value) for name, _, value in lines if name == b"content-length")
        while len(body) < length:
            body += connection.recv(65536)
        return True


def answered(status: int = 200, body: bytes | None = None) -> bytes:
    head = json.dumps({"outputs": [TENSOR]}).encode()
    content = head + np.array([5, 6], dtype=np.float32).tobytes() if body is None else body
    lines = [f"HTTP/1.1 {status} said", f"Content-Length: {len(content)}", f"{LENGTH_HEADER}: {len(head)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


@pytest.fixture
def serving() -> Iterator[Callable[[Callable[[int], bytes | None]], Server]]:
    with contextlib.ExitStack() as stack:

        def start(says: Callable[[int], bytes | None]) -> Server:
            server = Server(says)
            stack.callback(server.close)
            return server

        yield start


def asked(worker: CallWorker, clock: Callable[[], float] = time.monotonic) -> object:
    """The outcome of one request: its values, or the kind of failure and the words."""
    run_calls([(worker, RequestBatch([ROWS]))], clock=clock)
    (outcome,) = worker.outcomes
    return (outcome.kind, str(outcome)) if isinstance(outcome, CallError) else outcome["y"].ravel().tolist()


def a_worker(address: str, timeout_ms: int = 5000, clock: Callable[[], float] = time.monotonic) -> CallWorker:
    call = ModelCall(
        title="Inference m", headers={}, model="m", inputs=(X,), outputs=(Y,), timeout_us=timeout_ms * 1000
    )
    return CallWorker(address, call, clock)


Serving = Callable[[Callable[[int], bytes | None]], Server]


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_costs_no_answer(serving: Serving) -> None:
    server = serving(lambda number: None if number == 3 else answered())
    worker = a_worker(server.address)

    assert [asked(worker) for _ in range(4)] == [[5.0, 6.0]] * 4
    assert (server.connections, server.requests) == (2, 5)
    worker.close()


def test_a_server_that_only_hangs_up_is_unavailable(serving: Serving) -> None:
    server = serving(lambda _: None)
    worker = a_worker(server.address)

    kind, words = asked(worker)  # type: ignore[misc]
    assert kind is FailureKind.UNAVAILABLE
    assert server.address in words
    assert server.requests == 1  # a new connection that fails is no closed one
    worker.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FailureKind.REFUSED),
        (500, FailureKind.FAILED),
        (504, FailureKind.TIMED_OUT),
        (429, FailureKind.UNAVAILABLE),
        (503, FailureKind.UNAVAILABLE),
        (404, FailureKind.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("body", [b'{"error": "no such row"}', b"no such row\n"])
def test_a_status_is_told_in_the_words_that_came_with_it(
    serving: Serving, status: int, kind: FailureKind, body: bytes
) -> None:
    server = serving(lambda number: answered(status, body) if number == 1 else answered())
    worker = a_worker(server.address)

    assert asked(worker) == (kind, "no such row")
    assert asked(worker) == [5.0, 6.0]
    assert server.connections == 1
    worker.close()


def a_part(name: str, default: str | None = None, timeout_ms: int = 5000) -> PipelinePart:
    call = ModelCall(
        title=f"Inference {name}",
        headers={},
        model=name,
        inputs=(X,),
        outputs=(Y,),
        timeout_us=timeout_ms * 1000,
    )
    return PipelinePart(name=name, call=call, default=default)


def a_pipeline(
    address: str,
    *parts: PipelinePart,
    features: ModelCall | None = None,
    said: list[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> PipelineRunner:
    plan = PipelinePlan(gateway=address, features=features, parts=parts, inputs=(X,), outputs=())
    return PipelineRunner(plan, (said if said is not None else []).append, clock)


def test_a_part_that_breaks_in_an_unforeseen_way_fails_alone(serving: Serving) -> None:
    """Here a header with a line break, which is refused with a ValueError."""
    server = serving(lambda _: answered())
    broken = a_part("broken", default="0.5")
    headers = {"x-tidegate-part": "a\nb"}
    broken = broken.model_copy(update={"call": broken.call.model_copy(update={"headers": headers})})
    pipeline = a_pipeline(server.address, a_part("good"), broken)

    for _ in range(2):
        (answer,) = pipeline.answer_requests([ROWS])
        assert not isinstance(answer, CallError), answer
        assert answer["good"].ravel().tolist() == [5, 6]
        assert answer["broken"].ravel().tolist() == [0.5, 0.5]
        assert answer[DEFAULTED].ravel().tolist() == [b"broken"] * 2
    assert pipeline.outcomes["broken", "failed"] == 2
    pipeline.close()


def test_what_a_part_fails_of_is_said_once_a_minute(serving: Serving) -> None:
    """An optional part that fails has an answer all the same, so nobody else hears of it."""
    server = serving(lambda _: answered(503, b'{"error": "no ready endpoint"}'))
    said: list[str] = []
    ahead_s = 0.0
    pipeline = a_pipeline(
        server.address, a_part("shed", default="0.5"), said=said, clock=lambda: time.monotonic() + ahead_s
    )

    for _ in range(3):
        pipeline.answer_requests([ROWS])
    assert said == ["part shed: unavailable: no ready endpoint"]
    ahead_s = 60.0
    pipeline.answer_requests([ROWS, ROWS])
    assert said[1:] == ["part shed: unavailable: no ready endpoint (2 more requests since the last time)"]
    pipeline.close()


def test_a_part_that_answers_another_output_fails_alone(serving: Serving) -> None:
    server = serving(lambda _: answered())
    other = a_part("other", default="0.5")
    outputs = (TensorSpec(name="z", dtype="FP32", shape=(-1, 1)),)
    other = other.model_copy(update={"call": other.call.model_copy(update={"outputs": outputs})})
    pipeline = a_pipeline(server.address, a_part("good"), other)

    (answer,) = pipeline.answer_requests([ROWS])
    assert not isinstance(answer, CallError), answer
    assert answer["good"].ravel().tolist() == [5, 6]
    assert answer[DEFAULTED].ravel().tolist() == [b"other"] * 2
    pipeline.close()


def test_slow_features_leave_the_models_what_is_left(serving: Serving) -> None:
    """The features may take as long as the whole: whoever is asked after them has the rest of it, not as much again."""
    ahead_s = 0.0

    def says(number: int) -> bytes | None:
        """Half a minute passes with each request; only the first is answered.

        The others get the beginning of an answer, which tells whoever waits to look at the clock.
        """
        nonlocal ahead_s
        ahead_s += 30.0
        return answered() if number == 1 else answered()[:1]

    server = serving(says)
    features = a_part("features", timeout_ms=60_000).call
    features = features.model_copy(update={"inputs": (Y,), "outputs": (Y,)})
    models = (
        a_part("slow", timeout_ms=60_000, default="0.5"),
        a_part("quick", timeout_ms=100, default="0.5"),
    )
    said: list[str] = []
    pipeline = a_pipeline(
        server.address, *models, features=features, said=said, clock=lambda: time.monotonic() + ahead_s
    )
    (answer,) = pipeline.answer_requests([{**ROWS, "y": ROWS["x"]}])

    (left,) = [
        line.partition("no answer within ")[2] for line in said if line.startswith("part slow: timed out")
    ]
    assert float(left.removesuffix(" ms")) <= 30_000
    assert not isinstance(answer, CallError), answer
    assert answer[DEFAULTED].ravel().tolist() == [b"slow,quick"] * 2
    pipeline.close()


def test_features_that_are_not_current_are_marked_in_the_answer_of_each_request(serving: Serving) -> None:
    mark = TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1))
    content = np.zeros(3, dtype=np.float32).tobytes() + b"\x06\0\0\0clicks" * 3
    entries = [
        {"name": spec.name, "datatype": spec.dtype, "shape": [3, 1], "parameters": {"binary_data_size": size}}
        for spec, size in ((Y, 12), (mark, 30))
    ]
    head = json.dumps({"outputs": entries}).encode()
    lines = ["HTTP/1.1 200 said", f"Content-Length: {len(head + content)}", f"{LENGTH_HEADER}: {len(head)}"]
    marked = "\r\n".join([*lines, "", ""]).encode() + head + content
    server = serving(lambda _: marked)
    call = a_part("features").call.model_copy(update={"optional_outputs": (mark,)})
    plan = PipelinePlan(
        gateway=server.address, features=call, parts=(a_part("good"),), inputs=(X,), outputs=(mark,)
    )
    pipeline = PipelineRunner(plan, lambda _: None)
    one, two = ({"x": np.zeros((rows, 1), dtype=np.float32)} for rows in (1, 2))

    first, second = pipeline.answer_requests([one, two])
    assert not isinstance(first, CallError), first
    assert not isinstance(second, CallError), second
    assert (first["good"].tolist(), first[NOT_CURRENT].tolist()) == ([[0]], [[b"clicks"]])
    assert second[NOT_CURRENT].tolist() == [[b"clicks"]] * 2
    pipeline.close()

    # A plan without the mark does not ask for it, and drops it.
    without = a_pipeline(server.address, a_part("good"), features=a_part("features").call)
    answers = without.answer_requests([one, two])
    assert [list(answer) for answer in answers if not isinstance(answer, CallError)] == [["good"]] * 2
    without.close()


def test_features_without_a_mark_are_current(serving: Serving) -> None:
    mark = TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1))
    server = serving(lambda _: answered())
    call = a_part("features").call.model_copy(update={"optional_outputs": (mark,)})
    plan = PipelinePlan(
        gateway=server.address, features=call, parts=(a_part("good"),), inputs=(X,), outputs=(mark,)
    )
    pipeline = PipelineRunner(plan, lambda _: None)

    (answer,) = pipeline.answer_requests([ROWS])
    assert not isinstance(answer, CallError), answer
    assert answer[NOT_CURRENT].tolist() == [[b""]] * 2
    pipeline.close()


def test_where_no_time_is_left_nobody_is_asked(serving: Serving) -> None:
    server = serving(lambda _: answered())
    worker = a_worker(server.address)

    run_calls([(worker, RequestBatch([ROWS]))], time.monotonic() - 1)
    (outcome,) = worker.outcomes
    assert isinstance(outcome, CallError)
    assert (outcome.kind, str(outcome)) == (FailureKind.TIMED_OUT, "no time was left to ask")
    assert (server.requests, worker.tally.calls) == (0, 0)
    assert asked(worker) == [5.0, 6.0]
    worker.close()


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000], ids=["HTML", "deep"])
def test_an_answer_that_is_none_is_a_failure(serving: Serving, body: bytes) -> None:
    head = f"HTTP/1.1 200 said\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    worker = a_worker(serving(lambda _: head + body).address)

    kind, words = asked(worker)  # type: ignore[misc]
    assert kind is FailureKind.FAILED
    assert "cannot be read" in words
    worker.close()


def test_an_answer_without_end_is_a_failure_and_the_next_call_is_answered(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_client, "MAX_ANSWER_BYTES", len(answered()))
    endless = b"HTTP/1.1 200 said\r\n\r\n" + b" " * (1 << 22)
    worker = a_worker(serving(lambda number: endless if number == 1 else answered()).address)

    assert asked(worker) == (FailureKind.FAILED, f"an answer of more than {len(answered())} bytes")
    assert asked(worker) == [5.0, 6.0]
    worker.close()


@pytest.mark.parametrize("trickles", [False, True], ids=["silence", "trickle"])
def test_the_deadline_ends_it_and_the_next_call_is_answered(serving: Serving, trickles: bool) -> None:
    """A trickle never lets a wait for the next bytes run out."""

    def says(number: int) -> bytes | None:
        if number == 1 and not trickles:
            server.closed.wait(20)
        return answered()

    slowed_s: float | None = None

    def clock() -> float:
        """Thirty times slower once it is slowed: what a busy machine takes counts for little."""
        now_s = time.monotonic()
        return now_s if slowed_s is None else slowed_s + (now_s - slowed_s) / 30

    server = serving(says)
    server.trickles = trickles
    patience_ms = 2000
    worker = a_worker(server.address, patience_ms, clock)
    assert asked(worker, clock) == (FailureKind.TIMED_OUT, f"no answer within {patience_ms} ms")
    server.trickles = False
    slowed_s = time.monotonic()
    assert asked(worker, clock) == [5.0, 6.0]
    worker.close()


def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        worker = a_worker(f"127.0.0.1:{taken.getsockname()[1]}")
        kind, _ = asked(worker)  # type: ignore[misc]
    assert kind is FailureKind.UNAVAILABLE
    worker.close()


def test_an_answer_in_chunks_is_read_to_its_end(serving: Serving) -> None:
    content = answered().partition(b"\r\n\r\n")[2]
    length = len(content) - 8
    head = f"HTTP/1.1 200 said\r\ntransfer-encoding: chunked\r\n{LENGTH_HEADER}: {length}\r\n\r\n".encode()
    pieces = [content[:7], content[7:-3], content[-3:], b""]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    server = serving(lambda _: head + chunks)
    worker = a_worker(server.address)

    assert [asked(worker) for _ in range(2)] == [[5.0, 6.0]] * 2
    assert server.connections == 1
    worker.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"content-length: -1\r\n\r\n", "a content-length of '-1'"),
        (b"transfer-encoding: chunked\r\n\r\n-1\r\n", "a chunk of length b'-1'"),
        (b"transfer-encoding: chunked\r\n\r\n" + b"1" * 100_000, "a chunk whose length has more"),
        (
            b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 20_000,
            "a chunk whose length has more than",
        ),
        (b"x: y\r\n" * 20_000, "headers of more than 65536 bytes"),
    ],
    ids=["length", "chunk", "endless chunk", "endless trailer", "endless headers"],
)
def test_an_answer_that_violates_http_is_none(serving: Serving, answer: bytes, says: str) -> None:
    worker = a_worker(serving(lambda _: b"HTTP/1.1 200 said\r\n" + answer).address)

    kind, words = asked(worker)  # type: ignore[misc]
    assert (kind, says in words) == (FailureKind.UNAVAILABLE, True), words
    worker.close()


def test_requests_and_answers_larger_than_any_buffer_of_the_kernel_are_whole(serving: Serving) -> None:
    rows = np.arange(4_000_000, dtype=np.float32)[:, None]
    tensor = {**TENSOR, "shape": list(rows.shape), "parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"outputs": [tensor]}).encode()
    lines = [
        "HTTP/1.1 200 said",
        f"Content-Length: {len(head) + rows.nbytes}",
        f"{LENGTH_HEADER}: {len(head)}",
    ]
    answer = "\r\n".join([*lines, "", ""]).encode() + head + rows.tobytes()
    worker = a_worker(serving(lambda _: answer).address, timeout_ms=30_000)

    run_calls([(worker, RequestBatch([{"x": rows}]))])
    (outcome,) = worker.outcomes
    assert not isinstance(outcome, CallError), outcome
    assert (outcome["y"] == rows).all()
    assert outcome["y"].flags.aligned
    worker.close()


def test_a_refusal_that_comes_before_the_request_is_sent_is_told() -> None:
    """A gateway refuses a body by its announced length, and reads no further."""
    refusal = b"HTTP/1.1 413 said\r\ncontent-length: 9\r\n\r\ntoo large"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections: list[socket.socket] = []

        def refuse() -> None:
            connection, _ = listening.accept()
            connections.append(connection)
            connection.recv(1000)
            connection.sendall(refusal)

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        worker = a_worker(f"127.0.0.1:{listening.getsockname()[1]}")
        rows = np.zeros((4_000_000, 1), dtype=np.float32)
        run_calls([(worker, RequestBatch([{"x": rows}]))])
        (outcome,) = worker.outcomes
        thread.join()
        worker.close()
        for connection in connections:
            connection.close()
    assert isinstance(outcome, CallError)
    assert (outcome.kind, str(outcome)) == (FailureKind.REFUSED, "too large")


def test_a_name_that_is_not_found_in_time_costs_no_more_than_the_deadline(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(lambda _: answered())
    address = ("127.0.0.1", int(server.address.rpartition(":")[2]))
    found = threading.Event()

    def look_up(host: str, _port: int, *, flags: int = 0, **_: int) -> list[tuple[object, ...]]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is a name")
        found.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    worker = a_worker(f"gateway:{address[1]}", timeout_ms=500)
    assert asked(worker) == (FailureKind.TIMED_OUT, "no answer within 500 ms")
    found.set()
    # The thread that looks it up may take longer than the deadline on a busy machine.
    wait_until(lambda: asked(worker) == [5.0, 6.0], what="it is answered once the name is found")
    worker.close()


def test_the_next_address_of_a_name_is_tried(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving(lambda _: answered())
    port = int(server.address.rpartition(":")[2])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = taken.getsockname()
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in (nobody, ("127.0.0.1", port))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        worker = a_worker(f"gateway:{port}")
        assert asked(worker) == [5.0, 6.0]
    assert server.connections == 1
    worker.close()


MISSING_FAMILY = 254
"""The number of an address family that no Linux has."""


def test_an_address_of_a_family_that_the_system_lacks_is_passed_over(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(lambda _: answered())
    port = int(server.address.rpartition(":")[2])
    addresses = [
        (family, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        for family in (MISSING_FAMILY, socket.AF_INET)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    worker = a_worker(f"gateway:{port}")
    assert asked(worker) == [5.0, 6.0]
    worker.close()
    with pytest.raises(OSError, match="not supported"):
        HttpConnection(addresses[:1])


def says_number(number: int) -> bytes:
    """The answer to the nth request is n, for both rows."""
    head = json.dumps({"outputs": [TENSOR]}).encode()
    return answered(body=head + np.array([number, number], dtype=np.float32).tobytes())


@pytest.mark.parametrize("aborts", [True, False], ids=["the next calls end it", "the next request ends it"])
def test_after_an_error_between_calls_nobody_gets_the_answer_to_another_request(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, *, aborts: bool
) -> None:
    arrived, released = threading.Event(), threading.Event()

    def says_late(number: int) -> bytes:
        if number == 1:
            arrived.set()
            released.wait(20)
        return says_number(number)

    def says_then(number: int) -> bytes:
        arrived.wait(20)
        return says_number(number)

    slow, quick = a_worker(serving(says_late).address), a_worker(serving(says_then).address)

    def fail(_: CallWorker) -> list[CallJob]:
        raise ValueError("no next call")

    if not aborts:
        monkeypatch.setattr(CallWorker, "abort_call", lambda _: None)
    batch = RequestBatch([ROWS])
    with pytest.raises(ValueError, match="no next call"):
        run_calls([(slow, batch), (quick, batch)], find_next=fail)
    assert slow.is_waiting is not aborts
    released.set()
    assert asked(slow) == [2.0, 2.0]
    slow.close()
    quick.close()


def test_an_answer_of_another_shape_than_the_plan_says_fails_its_part_alone(serving: Serving) -> None:
    """The one that other models select by: the parts that follow take its default, and the next batch its own answers."""
    wide = {**TENSOR, "shape": [2, 2], "parameters": {"binary_data_size": 16}}
    head = json.dumps({"outputs": [wide]}).encode()
    lines = ["HTTP/1.1 200 said", f"Content-Length: {len(head) + 16}", f"{LENGTH_HEADER}: {len(head)}"]
    odd = "\r\n".join([*lines, "", ""]).encode() + head + bytes(16)
    cut = CandidateCut(by="prerank", max_rows=2, min_rows=1, filler="0")
    said: list[str] = []
    for prerank in (a_part("prerank", default="0.5"), a_part("prerank")):
        pipeline = a_pipeline(
            serving(lambda number: odd if number == 1 else answered()).address,
            prerank,
            a_part("rank").model_copy(update={"cut": cut}),
            said=said,
        )
        first, second = (pipeline.answer_requests([ROWS])[0] for _ in range(2))
        if prerank.default is None:
            assert isinstance(first, CallError)
            assert "output y is FP32 [2, 2], not FP32 [-1, 1]" in str(first)
        else:
            assert not isinstance(first, CallError), first
            assert first["prerank"].tolist() == [[0.5], [0.5]]
            assert first["rank"].tolist() == [[5], [6]]
        assert not isinstance(second, CallError), second
        assert second["prerank"].tolist() == [[5], [6]]
        pipeline.close()


def test_a_batch_and_its_answers_do_not_stay_in_memory(serving: Serving) -> None:
    pipeline = a_pipeline(serving(lambda _: answered()).address, a_part("good"))
    request = {"x": ROWS["x"].copy()}
    (answer,) = pipeline.answer_requests([request])
    assert not isinstance(answer, CallError)
    inputs, output = weakref.ref(request["x"]), weakref.ref(answer["good"].base)
    del request, answer
    assert (inputs(), output()) == (None, None)
    pipeline.close()


def test_a_model_may_take_more_inputs_than_the_system_sends_at_once(serving: Serving) -> None:
    inputs = tuple(TensorSpec(name=f"x{number}", dtype="FP32", shape=(-1, 1)) for number in range(2_000))
    server = serving(lambda _: answered())
    call = a_part("wide").call.model_copy(update={"inputs": inputs})
    worker = CallWorker(server.address, call)
    rows = {spec.name: ROWS["x"] for spec in inputs}

    run_calls([(worker, RequestBatch([rows]))])
    (outcome,) = worker.outcomes
    assert not isinstance(outcome, CallError), outcome
    assert outcome["y"].ravel().tolist() == [5, 6]
    worker.close()
