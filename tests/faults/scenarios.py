"""What a user does in one run: steps on an Inference or two, and what must be so after each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faults.agents import BAD_VERSION
from faults.kubelet import NODE

NAME: Final = "ctr"
GIVER: Final = "rank"
"""Who gives slices away in a reallocation."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change of the spec, and how it ends: Ready, with a failure, or with nothing there."""

    spec: Mapping[str, Any] | None
    """Fields laid over the spec; None deletes the object."""
    ends: str = "Ready"
    """Reason or status that Ready must carry: `Ready`, a failure's reason, or `Gone`."""
    waits: bool = True
    """Whether the next step comes only after this one has ended."""
    name: str = NAME
    """The Inference that it is about."""
    pods: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many pods each Inference must have in the end; empty: as many as the spec says."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A ComputePool of the run's own, named as its namespace, and what must hold in it at every moment."""

    spec: Mapping[str, Any]
    slices: int
    """There are so many, and never more pods, those on their way out included; each has one slice."""
    floor: int
    """Pods of NAME that answer throughout the steps."""
    made: int
    """Pods that the steps start in all: one more is one that was started twice."""
    drain_s: float = 0.0
    """How long a pod takes to end."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`before` is brought about without a fault, `steps` with one."""

    name: str
    before: Sequence[Step]
    steps: Sequence[Step]
    keeps_serving: bool = False
    """Whether never fewer pods than replicas may be ready meanwhile."""
    pool: Pool | None = None
    """Whose slices its Inferences are placed on."""


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

_SLICES: Final = 4
_ONE: Final = {"model": {"version": "1"}}
REALLOCATION: Final = Scenario(
    "reallocation",
    (
        # A range leaves a model what it has; so the near-line one begins with a fixed number.
        Step({**_ONE, "tier": "nearline", "replicas": 3}, name=GIVER),
        Step({"replicas": 1, "scaling": {"minReplicas": 0, "maxReplicas": 3}}, name=GIVER, pods={GIVER: 3}),
        Step({**_ONE, "scaling": {"minReplicas": 1, "maxReplicas": 3}}, pods={NAME: 1, GIVER: 3}),
    ),
    (Step({"scaling": {"minReplicas": 3}}, pods={NAME: 3, GIVER: 1}),),
    pool=Pool(
        {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "slice": {"cpu": {"cpu": "16", "memory": "1Gi"}},
            "policy": {"mode": "Auto", "interval": "1s"},
        },
        _SLICES,
        floor=1,
        made=2,
        drain_s=0.5,
    ),
)
"""Real-time work takes two slices of near-line work, which has to be gone from them first."""

ALL: Final = (CREATE, SWAP, ROLLOUT, MEND, DELETE, RECREATE, REALLOCATION)
