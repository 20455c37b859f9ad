"""Options that change Inferences and tiers for a what-if, like --min ads/ctr=2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

Pairs = list[str] | None

Floors = Annotated[Pairs, typer.Option("--floor", help="Least slices of a tier, like offline=4.")]
Ceilings = Annotated[Pairs, typer.Option("--ceiling", help="Most slices of a tier.")]
LeastReplicas = Annotated[
    Pairs, typer.Option("--min", help="Least replicas of an Inference, like ads/ctr=2.")
]
MostReplicas = Annotated[Pairs, typer.Option("--max", help="Most replicas of an Inference.")]
RequestValues = Annotated[Pairs, typer.Option("--value", help="Value of a request to an Inference.")]


def parse_changes(
    *,
    demand: Pairs,
    floor: Pairs,
    ceiling: Pairs,
    min_replicas: Pairs,
    max_replicas: Pairs,
    value: Pairs,
) -> dict[str, Any]:
    """Return the fields `inferences` and `tiers` of a what-if. Raises BadParameter that names the option."""
    inferences: dict[str, dict[str, Any]] = {}
    for subject, text in parse_pairs("--demand", demand):
        field = "factor" if text.startswith("x") else "demand"
        inferences.setdefault(subject, {"inference": subject})[field] = text.removeprefix("x")
    for option, field, values in (
        ("--min", "minReplicas", min_replicas),
        ("--max", "maxReplicas", max_replicas),
        ("--value", "value", value),
    ):
        for subject, text in parse_pairs(option, values):
            inferences.setdefault(subject, {"inference": subject})[field] = text
    tiers: dict[str, dict[str, Any]] = {}
    for option, field, values in (("--floor", "floor", floor), ("--ceiling", "ceiling", ceiling)):
        for subject, text in parse_pairs(option, values):
            tiers.setdefault(subject, {"tier": subject})[field] = text
    return {"inferences": list(inferences.values()), "tiers": list(tiers.values())}


def parse_pairs(option: str, texts: Pairs) -> Sequence[tuple[str, str]]:
    """Return the name and the text of each name=text. Raises BadParameter."""
    pairs: list[tuple[str, str]] = []
    for text in texts or ():
        name, equals, number = text.partition("=")
        if not (name and equals and number):
            message = f"{option} {text}: want name=number"
            raise typer.BadParameter(message)
        pairs.append((name, number))
    return pairs
