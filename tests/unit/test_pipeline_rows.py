"""A batch of a pipeline, without sockets: joined, split, halved where a model refuses, and filled where one may fail."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tidegate_dataplane.contract import DEFAULTED, NOT_CURRENT, ModelCall, PipelinePart, TensorSpec
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.pipeline import add_mark, merge_outcomes
from tidegate_dataplane.pipeline.rows import AnswerRows, Outcome, RequestBatch, infer_together
from tidegate_dataplane.pipeline.wire import Arrays, decode_response, encode_document, encode_tensor


class Model:
    """Doubles x; refuses rows below zero, and says nothing at all once it is `gone`."""

    def __init__(self, *, gone: bool = False) -> None:
        self.gone = gone
        self.asked: list[int] = []

    def __call__(self, arrays: Arrays) -> Arrays:
        self.asked.append(len(arrays["x"]))
        if self.gone:
            raise CallError(FailureKind.UNAVAILABLE, "nobody")
        if (arrays["x"] < 0).any():
            raise CallError(FailureKind.FAILED, "below zero")
        return {"y": arrays["x"] * 2}


def outcomes_of(
    model: Callable[[Arrays], Arrays],
    requests: Sequence[Arrays],
    names: tuple[str, ...] = ("x",),
    max_rows: int | None = None,
) -> list[Outcome]:
    batch = RequestBatch(requests)
    steps = infer_together(batch, names, max_rows)
    try:
        positions = next(steps)
        while True:
            try:
                answer = model({name: batch.join_rows(name, positions) for name in names})
            except CallError as error:
                positions = steps.throw(error)
            else:
                positions = steps.send(answer)
    except StopIteration as end:
        outcomes: list[Outcome] = end.value
        return outcomes


def requests(*rows: Sequence[float]) -> list[Arrays]:
    return [{"x": np.array(one, dtype=np.float32)[:, None], "unused": np.zeros(1)} for one in rows]


def answers(outcomes: Sequence[object]) -> list[object]:
    return [
        str(one) if isinstance(one, CallError) else one["y"].ravel().tolist()  # type: ignore[index]
        for one in outcomes
    ]


def test_all_requests_are_one_call_and_each_gets_its_own_rows() -> None:
    model = Model()
    outcomes = outcomes_of(model, requests([1, 2], [3], [4, 5, 6]))

    assert answers(outcomes) == [[2, 4], [6], [8, 10, 12]]
    assert model.asked == [6]


def test_a_refused_row_fails_its_request_alone() -> None:
    model = Model()
    outcomes = outcomes_of(model, requests([1], [2], [3], [4], [5], [-6], [7], [8]))

    assert answers(outcomes) == [[2], [4], [6], [8], [10], "below zero", [14], [16]]
    # Down to the one: 8, then 4 + 4, 2 + 2, 1 + 1.
    assert model.asked == [8, 4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize(("waiting", "calls"), [(1, 1), (2, 3), (7, 7), (8, 7), (64, 13)])
def test_a_model_that_always_fails_is_asked_no_more_often_than_one_bad_row_takes(
    waiting: int, calls: int
) -> None:
    model = Model()
    outcomes = outcomes_of(model, requests(*[[-1]] * waiting))

    assert answers(outcomes) == ["below zero"] * waiting
    assert len(model.asked) == calls


@pytest.mark.parametrize("waiting", [2, 3, 5, 8, 31, 64])
def test_one_bad_row_is_found_wherever_it_is(waiting: int) -> None:
    for bad in range(waiting):
        rows = [[-1.0] if place == bad else [1.0] for place in range(waiting)]
        found = answers(outcomes_of(Model(), requests(*rows)))
        assert [place for place, answer in enumerate(found) if answer == "below zero"] == [bad]


def test_a_model_that_is_gone_is_not_asked_again() -> None:
    model = Model(gone=True)

    assert answers(outcomes_of(model, requests([1], [2]))) == ["nobody", "nobody"]
    assert model.asked == [2]


def test_rows_of_different_shapes_are_different_calls() -> None:
    model = Model()
    mixed = [{"x": np.ones((1, 1))}, {"x": np.ones((1, 3))}, {"x": np.ones((2, 1))}]

    assert [one["y"].shape for one in outcomes_of(model, mixed) if not isinstance(one, CallError)] == [
        (1, 1),
        (1, 3),
        (2, 1),
    ]
    assert model.asked == [3, 1]


def test_a_call_has_no_more_rows_than_the_model_takes() -> None:
    model = Model()
    outcomes = outcomes_of(model, requests([1, 2], [3], [4, 5, 6], [-7], [8]), max_rows=3)

    assert answers(outcomes) == [[2, 4], [6], [8, 10, 12], "below zero", [16]]
    # The last call is repeated in halves.
    assert model.asked == [3, 3, 2, 1, 1]


def test_features_are_encoded_once_and_not_copied_for_all_models_that_take_them() -> None:
    spec = TensorSpec(name="y", dtype="FP32", shape=(-1, 1))
    features = outcomes_of(Model(), requests([1, 2], [3], [4]))
    rows = [one for one in features if not isinstance(one, CallError)]
    batch = RequestBatch(requests([1, 2], [3], [4]), rows)
    everyone, pair = (0, 1, 2), (1, 2)

    tensor = batch.encode_input(spec, everyone)
    assert np.frombuffer(tensor.content, np.float32).tolist() == [2, 4, 6, 8]
    assert batch.encode_input(spec, everyone) is tensor
    for positions in (everyone, pair):
        assert np.shares_memory(batch.join_rows("y", positions), batch.join_rows("y", everyone))
    # Those of other answers, or in another order, are joined by copies.
    assert batch.join_rows("y", (2, 0)).ravel().tolist() == [8, 2, 4]
    assert batch.join_rows("x", pair).ravel().tolist() == [3, 4]
    assert not np.shares_memory(batch.join_rows("y", (2, 0)), batch.join_rows("y", everyone))


def test_an_answer_that_is_not_row_by_row_is_no_answer() -> None:
    outcomes = outcomes_of(lambda arrays: {"y": arrays["x"][:1]}, requests([1], [2]))

    # Asked alone each is one row, so each has its own.
    assert answers(outcomes) == [[1], [2]]
    (outcome,) = outcomes_of(lambda arrays: {"y": np.zeros(())}, requests([1]))
    assert "must answer row by row" in str(outcome)


def a_part(name: str, default: str | None = None, dtype: str = "FP32") -> PipelinePart:
    output = TensorSpec(name="score", dtype=dtype, shape=(-1, 2))
    call = ModelCall(
        title=f"Inference {name}", headers={}, model=name, inputs=(), outputs=(output,), timeout_us=1
    )
    return PipelinePart(name=name, call=call, default=default)


FAILED = CallError(FailureKind.TIMED_OUT, "no answer within 20 ms")


@pytest.mark.parametrize(
    ("default", "dtype", "value"), [("0.25", "FP32", 0.25), ("-3", "INT64", -3), ("1", "BOOL", 1)]
)
def test_a_default_fills_every_element_and_is_marked(default: str, dtype: str, value: float) -> None:
    parts = {"a": a_part("a"), "b": a_part("b", default, dtype)}
    answer = merge_outcomes({"a": {"score": np.ones((3, 2))}, "b": FAILED}, parts, rows=3)

    assert not isinstance(answer, CallError)
    assert answer["b"].shape == (3, 2)
    assert (answer["b"] == value).all()
    assert answer[DEFAULTED].tolist() == [[b"b"]] * 3


def test_clients_see_which_streams_the_features_of_their_rows_lack() -> None:
    marks = np.array([[b""], [b"clicks"], [b"clicks"]], dtype=object)
    features = AnswerRows({"age": np.zeros((3, 1)), NOT_CURRENT: marks}, 1, 3)

    answer = add_mark({"pctr": np.ones((2, 1))}, features, 2)
    assert not isinstance(answer, CallError)
    assert list(answer) == ["pctr", NOT_CURRENT]
    assert answer[NOT_CURRENT].tolist() == [[b"clicks"]] * 2
    # A pod that has no Redis yet names none.
    without = add_mark({"pctr": np.ones((2, 1))}, {"age": np.zeros((2, 1))}, 2)
    assert not isinstance(without, CallError)
    assert without[NOT_CURRENT].tolist() == [[b""]] * 2
    assert add_mark(FAILED, features, 2) is FAILED


def test_whoever_is_not_optional_fails_the_request_by_name() -> None:
    answer = merge_outcomes({"a": FAILED}, {"a": a_part("a")}, rows=1)

    assert isinstance(answer, CallError)
    assert (answer.kind, str(answer)) == (FailureKind.TIMED_OUT, "a (Inference a): no answer within 20 ms")


def test_every_type_comes_back_from_the_wire_as_it_went() -> None:
    arrays = {
        "f": np.array([[1.5], [2.5]], dtype=np.float16),
        "i": np.array([[-1], [2]], dtype=np.int64),
        "b": np.array([[True], [False]]),
        "s": np.array([["é".encode()], [b""]], dtype=object),
    }
    types = {"f": "FP16", "i": "INT64", "b": "BOOL", "s": "BYTES"}
    specs = [TensorSpec(name=name, dtype=types[name], shape=(-1, 1)) for name in arrays]
    tensors = [encode_tensor(arrays[spec.name], spec) for spec in specs]
    head = json.loads(encode_document(tensors, specs))
    content = b"".join(tensor.content for tensor in tensors)
    # What a server answers looks like what it was asked.
    again = json.dumps({"outputs": head["inputs"]}).encode()
    found = decode_response(again + content, len(again), specs)

    for name, array in arrays.items():
        assert found[name].tolist() == array.tolist()


Y = TensorSpec(name="y", dtype="FP32", shape=(-1, 1))
S = TensorSpec(name="s", dtype="BYTES", shape=(-1, 1))


def an_output(content: bytes = b"1234", **fields: object) -> tuple[object, bytes]:
    output = {
        "name": "y",
        "datatype": "FP32",
        "shape": [1, 1],
        "parameters": {"binary_data_size": len(content)},
    }
    return {"outputs": [output | fields]}, content


@pytest.mark.parametrize(
    ("asked", "answer", "says"),
    [
        (Y, an_output(parameters=None), "output y came as JSON"),
        (Y, an_output(name="z"), "output y is missing"),
        (Y, an_output(datatype="FP16"), r"output y is FP16 \[1, 1\], not FP32"),
        (Y, an_output(shape=[2, 1]), "cannot reshape"),
        (Y, an_output(shape=[1]), r"output y is FP32 \[1\], not FP32 \[-1, 1\]"),
        (Y, an_output(bytes(8), shape=[1, 2]), r"output y is FP32 \[1, 2\], not FP32 \[-1, 1\]"),
        (Y, an_output(b"12"), "buffer size"),
        (S, an_output(b"abc", name="s", datatype="BYTES"), "not what the protocol says"),
        (S, an_output(b"\4\0\0\0abc", name="s", datatype="BYTES"), "text of output s ends early"),
        (Y, an_output(parameters={"binary_data_size": "4"}), "not what the protocol says"),
        (Y, ({"outputs": ["y"]}, b""), "not what the protocol says"),
        (Y, ({"outputs": None}, b""), "not what the protocol says"),
        (Y, ([], b""), "not what the protocol says"),
        (Y, ({}, b""), "not what the protocol says"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused(
    asked: TensorSpec, answer: tuple[object, bytes], says: str
) -> None:
    head = json.dumps(answer[0]).encode()
    with pytest.raises(ValueError, match=says):
        decode_response(head + answer[1], len(head), [asked])


def test_an_output_that_was_not_asked_for_is_left_out() -> None:
    head = {"outputs": [an_output()[0]["outputs"][0], {"name": "z", "datatype": "FP64"}]}  # type: ignore[index]
    body = json.dumps(head).encode()
    assert decode_response(body + b"1234", len(body), [Y]).keys() == {"y"}


def decode_marks(piece: bytes, rows: int) -> Arrays:
    """Decode a response whose only output is the mark of some rows."""
    mark = TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1))
    entry = {
        "name": mark.name,
        "datatype": mark.dtype,
        "shape": [rows, 1],
        "parameters": {"binary_data_size": len(piece)},
    }
    document = json.dumps({"outputs": [entry]}).encode()
    return decode_response(document + piece, len(document), (mark,))


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns how many texts were decoded one by one."""
    decoded: list[int] = []
    unpack_from = struct.unpack_from

    def unpack(form: str, piece: memoryview, offset: int) -> tuple[int, ...]:
        decoded.append(offset)
        return unpack_from(form, piece, offset)

    monkeypatch.setattr(struct, "unpack_from", unpack)
    return lambda: len(decoded)


@pytest.mark.parametrize("rows", [0, 1, 200, 4096])
def test_empty_marks_of_many_rows_are_not_decoded_one_by_one(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoded(monkeypatch)
    marks = decode_marks(bytes(4 * rows), rows)[NOT_CURRENT]
    assert (marks.dtype, marks.shape, marks.ravel().tolist()) == (np.dtype(object), (rows, 1), [b""] * rows)
    assert decoded() == 0


@pytest.mark.parametrize(
    "texts",
    [[b"clicks", b"", b"orders,clicks"], [b"", b"", b"clicks"], [b"\0\0\0\0"], [b"\0\0\0\0", b""]],
)
def test_marks_of_which_some_have_text_are_decoded_as_before(
    texts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoded(monkeypatch)
    piece = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    marks = decode_marks(piece, len(texts))[NOT_CURRENT]
    assert (marks.shape, marks.ravel().tolist()) == ((len(texts), 1), texts)
    assert decoded() == len(texts)


@pytest.mark.parametrize("size", [4, 7, 12])
def test_empty_marks_of_another_number_of_rows_are_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=r"cannot reshape|not what the protocol says"):
        decode_marks(bytes(size), 2)
