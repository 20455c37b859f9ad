"""Bound the memory that a version may take beside the others of its container, and measure what it took."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
_MEMORY_FILES: Final = (("memory/", "limit_in_bytes", "usage_in_bytes"), ("", "max", "current"))
"""Of control groups of version 1 and 2: the folder, the limit and the usage; a container sees its own group at the root."""
_RESERVE_BYTES: Final = 16 << 20
_OUT_OF_MEMORY_TEXTS: Final = ("bad_alloc", "Failed to allocate memory")
"""Parts of ONNX Runtime's messages when an allocation fails."""


class VersionTooLargeError(Exception):
    """A version needs more memory than the others leave; the message has the numbers and the way out."""


@contextmanager
def limit_memory(instances: int, *, has_engines: bool, cgroup: Path = CGROUP) -> Generator[None]:
    """Make allocations fail before the container reaches its memory limit.

    At the limit, the kernel would kill Triton, together with the version that serves. The server starts all processes of a
    version at once, so each may take its share of what is free.

    Raises:
        VersionTooLargeError: the block ended because an allocation failed.
    """
    free_bytes, limit_bytes = read_free_memory(cgroup) or (None, None)
    if free_bytes is None or limit_bytes is None:
        yield
        return
    previous_limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (_read_data_bytes() + max(free_bytes - _RESERVE_BYTES, 0) // instances, previous_limits[1]),
    )
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        processes = f"with {instances} processes " if instances > 1 else ""
        engines = ", or remove spec.compile.engine" if has_engines else ""
        message = (
            f"out of memory: {processes}the version needs more than the {free_bytes >> 20} MiB that the other versions leave of the "
            f"limit of {limit_bytes >> 20} MiB; raise spec.resources.memory, or keep fewer with spec.rollout.keepVersions{engines}"
        )
        raise VersionTooLargeError(message) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, previous_limits)


def read_free_memory(cgroup: Path = CGROUP) -> tuple[int, int] | None:
    """Return the free bytes of the container and its memory limit; None if it has no limit."""
    for folder, limit, usage in _MEMORY_FILES:
        try:
            limit_bytes, used_bytes = (
                int((cgroup / f"{folder}memory.{name}").read_text()) for name in (limit, usage)
            )
            lines = (cgroup / f"{folder}memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue  # the other version of cgroups, or the word `max`
        stat = dict(line.split() for line in lines)
        # The kernel frees file pages before it kills a process.
        files = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
        return (limit_bytes - used_bytes + files, limit_bytes) if limit_bytes < 1 << 60 else None
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed, in Python or in ONNX Runtime."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


def read_private_bytes() -> int:
    """Return the bytes of memory that this process shares with no other."""
    return _read_status("RssAnon:")


def _read_data_bytes() -> int:
    """Return the bytes that count against this process's data limit."""
    return _read_status("VmData:")


def _read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
