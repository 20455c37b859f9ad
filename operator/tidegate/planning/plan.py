"""The result of planning: what to apply, delete, order and say, all of it values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidegate.api.meta import ObjectKey
from tidegate.planning.pods import PodView
from tidegate.resources.manifest import Manifest
from tidegate_dataplane.contract import DesiredState


@dataclass(frozen=True, slots=True)
class Order:
    """A DesiredState for the agent of one pod."""

    pod: PodView
    desired: DesiredState


@dataclass(frozen=True, slots=True)
class Deletion:
    """One object of ours that is no longer wanted; `uid` keeps a namesake made since from being deleted."""

    kind: str
    key: ObjectKey
    uid: str


class EventType(StrEnum):
    """The two types of Kubernetes events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the object, for whoever describes it; said once per transition."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One reconcile's outcome. Everything in it is idempotent: carrying it out twice changes nothing."""

    status: Mapping[str, object]
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    orders: tuple[Order, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None
