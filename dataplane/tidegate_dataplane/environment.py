"""Settings from environment variables."""

from collections.abc import Mapping


def read_variables(prefix: str, environment: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return the variables that begin with `prefix`, without it, and those of `names`, in lower case; empty ones count as absent."""
    values = {
        name.removeprefix(prefix).lower(): value
        for name, value in environment.items()
        if name.startswith(prefix) and value
    }
    return values | {name.lower(): environment[name] for name in names if environment.get(name)}
