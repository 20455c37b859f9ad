"""The capacity curve that `spec.capacity` of an Inference describes."""

from tidegate.allocation.curves import CapacityCurve, fit_joint_curve
from tidegate.api.inference import Capacity


def build_curve(capacity: Capacity, relative: float = 1.0) -> CapacityCurve:
    """Return the requests per second that n replicas answer, each `relative` times as many as `capacity` has them."""
    return fit_joint_curve(float(capacity.requests_per_second), list_together(capacity)).scale_by(relative)


def list_together(capacity: Capacity) -> tuple[tuple[int, float], ...]:
    """Return what several replicas answer at the same time, as (replicas, requests per second)."""
    return tuple((joint.replicas, float(joint.requests_per_second)) for joint in capacity.together)
