"""The result of planning, as values: what to apply and delete, the orders of agents, the status and Events."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidegate.api.meta import ObjectKey
from tidegate.planning.pods import PodView
from tidegate.resources.manifest import Manifest
from tidegate_dataplane.contract import DesiredState


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """A DesiredState for the agent of one pod."""

    pod: PodView
    desired_state: DesiredState


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """One object of ours to delete; the `uid` protects a new object of the same name."""

    kind: str
    key: ObjectKey
    uid: str


class EventType(StrEnum):
    """The two types of Kubernetes Events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the object, once per transition."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """The outcome of one reconcile. Applying it twice changes nothing."""

    status: Mapping[str, object]
    apply: tuple[Manifest, ...] = ()
    delete: tuple[ObjectDeletion, ...] = ()
    orders: tuple[AgentOrder, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None
