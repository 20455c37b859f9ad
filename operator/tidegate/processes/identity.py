"""Who a process is: unique for each start, since a restarted process is another candidate for the lease."""

import uuid

from tidegate.settings import PodIdentity


def process_identity(pod: PodIdentity) -> str:
    """The pod's name and a suffix of this start alone."""
    return f"{pod.name}_{uuid.uuid4().hex[:8]}"
