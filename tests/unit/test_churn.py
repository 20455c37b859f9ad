"""The churn's plan is the seed's alone, and its load takes no answer for right that is not exactly that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from harness.churn_plan import LEFT, RIGHT, ROUND, Action, Kind, plan_actions
from harness.raw_load import Question
from tritonclient.grpc import service_pb2

from builders import probe_model


def first(count: int, seed: int = 1) -> Sequence[Action]:
    return tuple(islice(plan_actions(seed), count))


def test_the_same_seed_gives_the_same_actions_and_another_one_others() -> None:
    assert first(500) == first(500)
    assert first(500) != first(500, seed=2)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_is_in_every_round(seed: int) -> None:
    actions = first(10 * len(ROUND), seed)
    for at in range(0, len(actions), len(ROUND)):
        assert Counter(action.kind for action in actions[at : at + len(ROUND)]) == Counter(ROUND)
    assert set(ROUND) == set(Kind)


@pytest.mark.parametrize("seed", range(20))
def test_actions_fit_what_is_there_when_they_are_done(seed: int) -> None:
    guests: set[str] = set()
    serving, before, seen = {LEFT: 1, RIGHT: 2}, dict[str, int](), {1, 2}
    targets: tuple[tuple[str, int], ...] = ((LEFT, 100), (RIGHT, 0))
    for action in first(500, seed):
        match action.kind:
            case Kind.CREATE:
                assert action.inference not in guests
                guests = {action.inference}
            case Kind.DELETE:
                guests.remove(action.inference)
            case Kind.SWAP:
                assert action.version not in seen
                seen.add(action.version)
                before[action.inference], serving[action.inference] = (
                    serving[action.inference],
                    action.version,
                )
            case Kind.ROLLBACK:
                assert action.version == before.pop(action.inference)
                serving[action.inference] = action.version
            case Kind.FLIP | Kind.TARGETS:
                assert action.targets != targets
                targets = action.targets
            case Kind.KILL_AGENT:
                assert action.inference in serving
            case Kind.KILL_CONTROLLERS | Kind.KILL_XDS:
                assert action.inference == ""
        assert action.targets == targets
        assert action.answered_by == tuple(serving[name] for name, weight in targets if weight)
        assert action.answered_by
        assert serving[LEFT] % 2 == 1
        assert serving[RIGHT] % 2 == 0


def an_answer(
    *values: float,
    version: str = "3",
    name: str = "score",
    datatype: str = "FP32",
    shape: Sequence[int] = (1, 1),
) -> bytes:
    output = service_pb2.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
    return service_pb2.ModelInferResponse(
        model_name="probe",
        model_version=version,
        outputs=[output],
        raw_output_contents=[np.array(values, dtype=np.float32).tobytes()],
    ).SerializeToString()


def test_the_request_asks_for_its_row() -> None:
    request = service_pb2.ModelInferRequest.FromString(Question(7.0).serialize())
    assert (request.model_name, list(request.inputs[0].shape)) == ("probe", [1, 1])
    assert np.frombuffer(request.raw_input_contents[0], np.float32).tolist() == [7.0]


def test_the_right_answer_names_its_version_also_when_it_comes_again() -> None:
    question, right = Question(7.0), an_answer(7.0 + 3 * probe_model.STEP)
    assert [question.judge(right, {1, 3}) for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(an_answer(1007.0), "that is not that version's: ", id="another version's"),
        pytest.param(an_answer(3008.0), "that is not that version's: ", id="another caller's"),
        pytest.param(an_answer(np.nan), "[[nan]]", id="NaN"),
        pytest.param(an_answer(3007.0, 3007.0), "[[3007.0, 3007.0]]", id="a row too many"),
        pytest.param(an_answer(), "[[]]", id="no row"),
        pytest.param(an_answer(3007.0, shape=(1,)), "'FP32', [1]", id="another shape"),
        pytest.param(an_answer(3007.0, datatype="INT32"), "'INT32'", id="another type"),
        pytest.param(an_answer(3007.0, name="sum"), "'sum'", id="another tensor"),
        pytest.param(
            an_answer(5007.0, version="5"), "version '5', which was never published", id="unpublished"
        ),
        pytest.param(an_answer(3007.0, version=""), "version '', which was never published", id="no version"),
        pytest.param(b"\xff\xff", "is no answer", id="no message"),
        pytest.param(b"", "version '', which was never published", id="an empty message"),
    ],
)
def test_anything_else_is_wrong_and_says_why_each_time(content: bytes, text: str) -> None:
    question = Question(7.0)
    for _ in range(2):
        verdict = question.judge(content, {1, 3})
        assert isinstance(verdict, str)
        assert text in verdict
