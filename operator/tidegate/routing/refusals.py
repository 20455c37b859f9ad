"""The parts of a ModelAccess that are left out of the routing; the controller turns them into conditions."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason


@dataclass(frozen=True, slots=True, order=True)
class RoutingRefusal:
    """One part of one ModelAccess that is left out of the routing; the rest of the object works.

    `part` is the field as kubectl shows it: `spec.hosts: ctr.example.com` or `spec.routes[default].targets: ctr-v3`.
    """

    access: ObjectKey
    reason: Reason
    part: str
    message: str
