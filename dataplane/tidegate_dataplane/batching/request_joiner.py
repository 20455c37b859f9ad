"""Answer the requests that arrived together, in as few executions as pay."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import prod

from tidegate_dataplane.batching.arrays import (
    Answer,
    Inputs,
    Shape,
    are_all_equal,
    count_rows,
    find_common_shape,
    join_inputs,
    read_shape,
    split_answer,
)
from tidegate_dataplane.batching.execution_cost import ExecutionCost
from tidegate_dataplane.batching.join_check import JoinCheck, JoinState
from tidegate_dataplane.runner_interface import EXECUTIONS, JOINED, MISMATCHES, PADDING, ROWS, JoinLimit

EXPLORE_EVERY = 64
"""One decision in this many joins two shapes whatever the estimate is, so that a wrong estimate gets measured again."""
MAX_GROWTH = 4
"""How many times the elements of the requests a padded execution may have."""

Axes = frozenset[tuple[int, int]]
"""Dimensions of a row that are padded: the number of the input, and that of the dimension."""
Execute = Callable[[Inputs], Answer]


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests of one execution, by position, padded to `shape`."""

    positions: tuple[int, ...]
    shape: Shape
    rows: int
    requested_elements: int
    """What the inputs of the requests have, without padding."""
    padded_axes: Axes = frozenset()

    def count_elements(self) -> int:
        """Return the number of elements of the execution's inputs."""
        return self.rows * _count_row_elements(self.shape)


class JoinMode(Enum):
    """Which requests may share an execution."""

    NONE = auto()
    TRUSTED = auto()
    """Only requests of the same shape."""
    CHECKED = auto()
    """The same, and those of different shapes where padding is cheaper than another execution; each on trial first."""


class RequestJoiner:
    """Joins the requests of one model version; rows are along the first dimension of every input and output.

    `execute` runs the model once; `execute_exactly` does so where answers are compared, if those of `execute` may be rounded
    otherwise alone than joined.
    """

    def __init__(
        self,
        execute: Execute,
        mode: JoinMode,
        execute_exactly: Execute | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._execute, self._mode, self._clock = execute, mode, clock
        self._execute_exactly = execute if execute_exactly is None else execute_exactly
        self._cost = ExecutionCost()
        self._decisions = 0
        self._joins = JoinCheck()
        # Proof for one input is none for another.
        self._paddings: dict[Axes, JoinCheck] = {}
        self.executions = self.joined_requests = self.padded_requests = 0

    def answer_requests(self, requests: Sequence[Inputs]) -> list[Answer]:
        """Return the answer of each request, in order."""
        if len(requests) == 1 or self._mode is JoinMode.NONE or self._joins.state is JoinState.REFUSED:
            return [self._execute_measured(inputs) for inputs in requests]
        answers: list[Answer | None] = [None] * len(requests)
        for group in self._plan_groups(requests):
            members = [requests[position] for position in group.positions]
            for position, answer in zip(group.positions, self._answer_group(group, members), strict=True):
                answers[position] = answer
        return [answer for answer in answers if answer is not None]

    def find_limit(self) -> JoinLimit | None:
        """Return which requests are joined after what was seen; None if nothing is checked."""
        if self._mode is not JoinMode.CHECKED:
            return None
        if self._joins.state is JoinState.REFUSED:
            return JoinLimit.ALONE
        refused = any(check.state is JoinState.REFUSED for check in self._paddings.values())
        return JoinLimit.SAME_SHAPE if refused else JoinLimit.ANY_SHAPE

    def read_counters(self) -> dict[tuple[str, str], int]:
        """Return the counts since the start, by name and way of joining; the way is empty where there is none.

        May be called on another thread.
        """
        return {
            (EXECUTIONS, ""): self.executions,
            (JOINED, ROWS): self.joined_requests - self.padded_requests,
            (JOINED, PADDING): self.padded_requests,
            (MISMATCHES, ROWS): self._joins.mismatches,
            (MISMATCHES, PADDING): sum(check.mismatches for check in list(self._paddings.values())),
        }

    def _plan_groups(self, requests: Sequence[Inputs]) -> list[_Group]:
        positions: dict[Shape, list[int]] = {}
        for position, inputs in enumerate(requests):
            positions.setdefault(read_shape(inputs), []).append(position)
        groups: list[_Group] = []
        for shape, members in positions.items():
            rows = sum(count_rows(requests[member]) for member in members)
            groups.append(_Group(tuple(members), shape, rows, rows * _count_row_elements(shape)))
        pads = self._mode is JoinMode.CHECKED and len(groups) > 1
        return self._join_shapes(groups) if pads else groups

    def _join_shapes(self, groups: Sequence[_Group]) -> list[_Group]:
        """Return the groups, with those of similar shapes joined where padding is cheaper than an execution of its own."""
        self._decisions += 1
        explores = self._decisions % EXPLORE_EVERY == 0
        by_size = sorted(groups, key=lambda group: group.count_elements() / max(group.rows, 1))
        joined = [by_size[0]]
        for group in by_size[1:]:
            both = _join_groups(joined[-1], group)
            if both is None or not self._may_pad(both):
                joined.append(group)
            elif self._is_cheaper(both, (joined[-1], group)):
                joined[-1] = both
            elif explores:
                joined[-1], explores = both, False
            else:
                joined.append(group)
        return joined

    def _may_pad(self, group: _Group) -> bool:
        check = self._paddings.get(group.padded_axes)
        grows = group.count_elements() > MAX_GROWTH * group.requested_elements
        return not grows and (check is None or check.state is not JoinState.REFUSED)

    def _is_cheaper(self, both: _Group, parts: Sequence[_Group]) -> bool:
        together = self._cost.estimate_seconds(both.count_elements())
        separate_s = [self._cost.estimate_seconds(part.count_elements()) for part in parts]
        if together is None:
            return True
        return together <= sum(seconds for seconds in separate_s if seconds is not None)

    def _answer_group(self, group: _Group, requests: Sequence[Inputs]) -> Sequence[Answer]:
        check = self._find_check(group)
        # An earlier group may have just been refused.
        refused = JoinState.REFUSED in (check.state, self._joins.state)
        checked = self._mode is JoinMode.CHECKED
        if (
            len(requests) == 1
            or refused
            or (checked and check.state is JoinState.ON_TRIAL and are_all_equal(requests))
        ):
            return [self._execute_measured(inputs) for inputs in requests]
        picked = check.pick_requests(len(requests)) if checked else range(0)
        execute = self._execute_exactly if picked else self._execute
        joined = self._execute_joined(group, requests, execute)
        if joined is None:
            # One row that the model refuses must not fail the other requests.
            answers = [self._execute_measured(inputs) for inputs in requests]
            if checked and not any(isinstance(answer, Exception) for answer in answers):
                check.record_failure()
            return answers
        alone = {position: self._execute_measured(requests[position], execute) for position in picked}
        if not check.compare_answers([(answer, joined[position]) for position, answer in alone.items()]):
            unpicked = (position for position in range(len(requests)) if position not in alone)
            alone |= {position: self._execute_measured(requests[position]) for position in unpicked}
        self.joined_requests += len(requests) - len(alone)
        self.padded_requests += len(requests) - len(alone) if group.padded_axes else 0
        return [alone.get(position, answer) for position, answer in enumerate(joined)]

    def _find_check(self, group: _Group) -> JoinCheck:
        if not group.padded_axes:
            return self._joins
        return self._paddings.setdefault(group.padded_axes, JoinCheck())

    def _execute_joined(
        self, group: _Group, requests: Sequence[Inputs], execute: Execute
    ) -> list[Answer] | None:
        """Return the answers of one execution; None if it fails or has no row for each row of the inputs."""
        try:
            inputs = join_inputs(requests, group.shape)
        except MemoryError:
            return None
        return split_answer(
            self._execute_measured(inputs, execute), [count_rows(inputs) for inputs in requests]
        )

    def _execute_measured(self, inputs: Inputs, execute: Execute | None = None) -> Answer:
        started = self._clock()
        answer = (execute or self._execute)(inputs)
        self.executions += 1
        if not isinstance(answer, Exception):
            elements = sum(array.size for array in inputs.values())
            self._cost.record_execution(elements, self._clock() - started)
        return answer


def _join_groups(first: _Group, second: _Group) -> _Group | None:
    shape = find_common_shape((first.shape, second.shape))
    if shape is None:
        return None
    differing = frozenset(
        (number, axis)
        for group in (first, second)
        for number, (row, covering) in enumerate(zip(group.shape, shape, strict=True))
        for axis, (size, largest) in enumerate(zip(row, covering, strict=True))
        if size != largest
    )
    return _Group(
        (*first.positions, *second.positions),
        shape,
        first.rows + second.rows,
        first.requested_elements + second.requested_elements,
        first.padded_axes | second.padded_axes | differing,
    )


def _count_row_elements(shape: Shape) -> int:
    return sum(prod(row) for row in shape)
