"""What a user does in one run: steps on one Inference, and what must be so after each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from faults.servers import BAD_VERSION

NAME: Final = "ctr"


@dataclass(frozen=True, slots=True)
class Step:
    """A change of the spec, and how it ends: Ready, with a failure, or with nothing there."""

    spec: Mapping[str, Any] | None
    """Fields laid over the spec; None deletes the object."""
    ends: str = "Ready"
    """Reason or status that Ready must carry: `Ready`, a failure's reason, or `Gone`."""
    waits: bool = True
    """Whether the next step comes only after this one has ended."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`before` is brought about without a fault, `steps` with one."""

    name: str
    before: Sequence[Step]
    steps: Sequence[Step]
    keeps_serving: bool = False
    """Whether never fewer pods than replicas may be ready meanwhile."""


_TWO: Final = Step({"replicas": 2, "model": {"version": "1"}})

CREATE: Final = Scenario("create", (), (_TWO,))
SWAP: Final = Scenario("version-swap", (_TWO,), (Step({"model": {"version": "2"}}),), keeps_serving=True)
ROLLOUT: Final = Scenario("pod-rollout", (_TWO,), (Step({"resources": {"cpu": "200m"}}),), keeps_serving=True)
MEND: Final = Scenario(
    "bad-version-mended",
    (_TWO,),
    (Step({"model": {"version": str(BAD_VERSION)}}, ends="LoadFailed"), Step({"model": {"version": "3"}})),
    keeps_serving=True,
)
DELETE: Final = Scenario("delete", (_TWO,), (Step(None, ends="Gone"),))
RECREATE: Final = Scenario(
    "delete-and-recreate",
    (_TWO,),
    (Step(None, ends="Gone", waits=False), Step({"replicas": 2, "model": {"version": "2"}})),
)

ALL: Final = (CREATE, SWAP, ROLLOUT, MEND, DELETE, RECREATE)
