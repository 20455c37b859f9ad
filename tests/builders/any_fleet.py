"""Fleets as chance makes them: for the properties that every fleet has."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

from builders.fleet import a_backend, a_fleet
from builders.model_access import a_model_access
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import FleetState

NAMES = st.sampled_from(["a", "b", "c", "d"])
HOSTS = st.sampled_from(["x.com", "y.com", "z.com"])
VALUES = st.text(string.printable[:95], min_size=1, max_size=20)


@st.composite
def any_model_access(draw: st.DrawFn, name: str | None = None) -> ModelAccess:
    """Any ModelAccess that the API accepts, nearly."""
    segments = draw(st.lists(VALUES, max_size=2, unique=True))
    routes_: list[dict[str, Any]] = []
    for number, segment in enumerate([*segments, None]):
        inferences = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        targets = [
            {"inference": inference, "weight": draw(st.integers(1 if index == 0 else 0, 1_000_000))}
            for index, inference in enumerate(inferences)
        ]
        route = {"name": f"r{number}", "targets": targets, "timeout": draw(st.sampled_from(["1ms", "1h"]))}
        if segment is not None:
            route["match"] = {"headers": [{"name": "x-segment", "exact": segment}]}
        if draw(st.booleans()):
            route["retry"] = {"attempts": draw(st.integers(0, 5)), "budgetPercent": draw(st.integers(0, 100))}
        routes_.append(route)
    month = draw(st.integers(1, 12))
    return a_model_access(
        name or draw(NAMES),
        draw(st.sampled_from(["ads", "shop"])),
        hosts=draw(st.lists(HOSTS, max_size=3, unique=True)),
        routes=routes_,
        metadata={"creationTimestamp": f"2026-{month:02}-01T00:00:00Z"},
    )


@st.composite
def any_fleet(draw: st.DrawFn) -> FleetState:
    """A fleet of such accesses, over backends of which some sleep and some serve another name."""
    accesses = {access.key: access for access in draw(st.lists(any_model_access(), max_size=4))}
    backends = [
        a_backend(
            name,
            *draw(st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), max_size=2, unique=True)),
            namespace=namespace,
            model_name=draw(st.sampled_from(["ctr", "ctr", "cvr"])),
        )
        for name in draw(st.lists(NAMES, unique=True))
        for namespace in ("ads", "shop")
    ]
    return a_fleet(*accesses.values(), *backends)
