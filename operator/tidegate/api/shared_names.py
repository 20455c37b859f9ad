"""References to objects of other namespaces: the target consents by an annotation that lists namespaces."""

from typing import Final

from tidegate.api.meta import CustomResource, ObjectKey

SHARED_WITH_ANNOTATION: Final = "tidegate.io/shared-with"
"""On a FeatureCompute: the other namespaces whose objects may refer to it, separated by commas."""


def resolve_shared_name(name: str, namespace: str) -> ObjectKey:
    """Return the key that a SharedName means in an object of `namespace`."""
    owner, _, rest = name.rpartition("/")
    return ObjectKey(owner or namespace, rest)


def is_shared_with(target: CustomResource, namespace: str) -> bool:
    """Return whether objects of `namespace` may refer to `target`: those of its own, and those that its annotation lists."""
    return namespace == target.key.namespace or namespace in list_shared_namespaces(target)


def list_shared_namespaces(target: CustomResource) -> tuple[str, ...]:
    """Return the other namespaces whose objects may refer to `target`."""
    listed = target.metadata.annotations.get(SHARED_WITH_ANNOTATION, "").split(",")
    names = {item.strip() for item in listed} - {"", target.key.namespace}
    return tuple(sorted(names))
