"""Complete names of objects in shells. Light on imports, because every command is declared with it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import typer


class CompletedKind(StrEnum):
    """The kind of object that an argument names, by its plural."""

    INFERENCE = "inferences"
    ACCESS = "modelaccesses"
    FEATURES = "featurecomputes"
    POOL = "computepools"


def complete_names(*kinds: CompletedKind) -> Callable[[typer.Context, str], list[str]]:
    """Return a callback for `typer.Argument(autocompletion=...)` that completes names of these kinds.

    It waits two seconds at most for the cluster; without an answer it offers nothing and prints nothing.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from tidegate.cli.run.completion import list_completions

        return list_completions(kinds, incomplete, ctx.params)

    return complete
