"""Every failure that a user may be shown is produced for real by a test, or is excused here with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.api.messages.catalogue import REASON_MESSAGES
from tidegate.api.reasons import Reason
from tidegate_dataplane.contract import FailureReason

TESTS = Path(__file__).parents[1]
REAL = ("component", "integration", "e2e")
"""Folders whose tests run the real thing: its server, API server or cluster."""

EXCUSED: Mapping[Reason, str] = {
    Reason.SAMPLING_UNSUPPORTED: "needs a Triton with an ONNX backend, which the test's server is not built with; "
    "tests/unit/test_agent_samples.py"
}
"""Why a reason that the user has to do something about is produced by no test on the real thing."""

STEPS = ("Nothing.", "Wait")
"""How the advice begins for reasons that are steps on the way and no failures."""
FAILURES = [
    reason
    for reason in Reason
    if not REASON_MESSAGES[reason].what_to_do.startswith(STEPS) and reason is not Reason.SCALED_TO_ZERO
]


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names of the enum's members in the function's marks `produces`."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.produces":
            for argument in decorator.args:
                assert isinstance(argument, ast.Attribute), f"{function.name}: name the member of the enum"
                yield argument.attr


def _tests() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for folder in REAL:
        for path in sorted((TESTS / folder).glob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield node


FUNCTIONS = tuple(_tests())
PRODUCED = {name for function in FUNCTIONS for name in _marks(function)}


def test_every_failure_is_produced_for_real_or_excused() -> None:
    """Either a test in REAL is marked to produce it, or it is in EXCUSED, and not both."""
    assert [reason for reason in FAILURES if (reason.name in PRODUCED) is (reason in EXCUSED)] == []


def test_excuses_are_few_and_for_failures() -> None:
    assert len(EXCUSED) <= 4
    assert set(EXCUSED) <= set(FAILURES)


def test_marks_are_kept_by_the_tests_themselves() -> None:
    """A test that is marked must name the reason again, where it waits for it or asserts it."""
    empty = [
        (function.name, name)
        for function in FUNCTIONS
        for name in _marks(function)
        if not _names(function, name)
    ]
    assert empty == []


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    body = "\n".join(ast.unparse(statement) for statement in function.body)
    return f"Reason.{name}" in body or repr(Reason[name].value) in body


def test_agents_reasons_are_the_objects_own() -> None:
    assert [reason for reason in FailureReason if Reason[reason.name] != reason.value] == []
