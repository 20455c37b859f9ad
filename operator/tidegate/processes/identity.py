"""The identity of a process as a candidate for the lease, unique for each start."""

import uuid

from tidegate.settings import PodIdentity


def process_identity(pod: PodIdentity) -> str:
    """Return the pod's name with a random suffix: a restarted process is another candidate."""
    return f"{pod.name}_{uuid.uuid4().hex[:8]}"
