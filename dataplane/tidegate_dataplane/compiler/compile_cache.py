"""Compiled files that pods share by name: on their node, and in an object store."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.cache_exchange import CacheExchange

log = structlog.get_logger()

ANSWER_S: Final = 300.0
"""Longest wait for a file of the store, which the agent answers long before unless it has ended."""
SILENCE_S: Final = 600.0
"""After that, how long the store counts as absent."""
_CHECK_S: Final = 0.05
_CHUNK_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class CompileCache:
    """The node's cache, if there is one, and behind it the store that the agent reaches, if the order has one.

    A name has one content for good, or its newest one is as good as any other. Files are not trusted: who takes one compares it.
    """

    def __init__(
        self,
        node: NodeCache | None,
        store: CacheExchange | None = None,
        may_wait: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_wait` is asked again and again while the agent reads a file of the store."""
        self._node, self._store = node, store
        self._may_wait, self._clock = may_wait, clock
        self._silent_until_s = clock()

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a small file; None if no cache has it. Raises OSError, and ValueError for a damaged cache."""
        path = None if self._node is None else self._node.find_intact(name)
        if path is not None:
            return path.read_bytes()
        fetched = self._fetch_file(name)
        if fetched is None or self._store is None:
            return None
        content = fetched.read_bytes()
        self._store.withdraw_request(name)
        self._keep_on_node(name, content)
        return content

    def copy_file(self, sha256: str, suffix: str, target: Path) -> bool:
        """Copy the file with a content of this digest to `target`; return whether a cache has it intact. Raises as `read_file`."""
        if not _DIGEST.fullmatch(sha256):
            return False
        name = f"{sha256}{suffix}"
        path = None if self._node is None else self._node.find_intact(name)
        if path is not None and path.name == sha256:
            shutil.copyfile(path, target)
            return True
        fetched = self._fetch_file(name)
        if fetched is None or self._store is None:
            return False
        try:
            if hash_file(fetched) != sha256:
                log.warning("compile_cache_damaged", file=name)
                return False
            self._keep_on_node(name, fetched)
            shutil.move(fetched, target)
            return True
        finally:
            self._store.withdraw_request(name)

    def find_time_added(self, name: str) -> float | None:
        """Return when a file was added to the node's cache, in seconds since 1970; None if it is not there."""
        return None if self._node is None else self._node.find_time_added(name)

    def add_file(self, name: str, content: Path | bytes) -> bool:
        """Add a file; return False if it does not fit anywhere, or cannot be written."""
        try:
            is_kept = self._keep_on_node(name, content)
            if self._store is None or not self._store.is_open:
                return is_kept
            return self._store.offer_file(name, content) or is_kept
        except OSError as error:
            log.warning("compiled_file_not_shared", file=name, error=str(error))
            return False

    def _keep_on_node(self, name: str, content: Path | bytes) -> bool:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        entry = None if self._node is None else self._node.begin_entry(size)
        if entry is None:
            return False
        is_complete = False
        try:
            if isinstance(content, bytes):
                entry.append(content)
            else:
                with content.open("rb") as file:
                    while chunk := file.read(_CHUNK_BYTES):
                        entry.append(chunk)
            is_complete = True
        finally:
            entry.finish(name, complete=is_complete, expected_sha256=None)
        return True

    def _fetch_file(self, name: str) -> Path | None:
        """Return a file of the store, where the agent puts it; None if there is none."""
        if self._store is None or not self._store.is_open or self._clock() < self._silent_until_s:
            return None
        self._store.request_file(name)
        deadline = self._clock() + ANSWER_S
        while self._store.is_open and self._may_wait():
            is_answered, path = self._store.read_answer(name)
            if path is not None:
                return path
            if is_answered:
                break
            if self._clock() >= deadline:
                log.warning("compile_cache_silent", file=name)
                self._silent_until_s = self._clock() + SILENCE_S
                break
            time.sleep(_CHECK_S)
        self._store.withdraw_request(name)
        return None
