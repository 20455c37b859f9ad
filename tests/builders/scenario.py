"""How a test says that its scenario has not come about, so that its result says nothing about the promise it is for."""

from __future__ import annotations


class NotReachedError(Exception):
    """The scenario has not come about, such as a kill in the middle of work that has ended before it.

    Unlike any other failure, this one is worth a second run where one failure is otherwise a defect (`no_rerun`).
    """


def not_reached(scenario: str) -> NotReachedError:
    """Return what to raise where an error shows that the scenario has not come about."""
    return NotReachedError(f"the test has not reached its scenario: {scenario}")


def require_scenario(is_reached: object, scenario: str) -> None:
    """Return if the scenario has come about.

    For what luck decides, never for what the product promises. Where a test can wait for its scenario, it waits.

    Raises:
        NotReachedError: it has not.
    """
    if not is_reached:
        raise not_reached(scenario)
