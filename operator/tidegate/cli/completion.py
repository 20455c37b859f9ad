"""Names of objects for shells that complete. Light: commands are declared with it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import typer


class Named(StrEnum):
    """What a word of a command names, by the plural of its kind."""

    INFERENCE = "inferences"
    ACCESS = "modelaccesses"
    FEATURES = "featurecomputes"
    POOL = "computepools"


def names_of(*kinds: Named) -> Callable[[typer.Context, str], list[str]]:
    """For `typer.Argument(autocompletion=...)`: names of objects of these kinds that begin like what was typed.

    The cluster is asked for two seconds at most; where it does not answer, nothing is offered and nothing is said.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from tidegate.cli.completing import found

        return found(kinds, incomplete, ctx.params)

    return complete
