"""Small files of the pod: the first order, the accepted and proven orders, and the control key."""

import os
import secrets
import shutil
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError

from tidegate_dataplane.contract import DesiredState

log = structlog.get_logger()

CONTROL_KEY_MODE = 0o640


class _SavedOrders(BaseModel):
    """Orders that survive a restart of the agent."""

    accepted: DesiredState | None = None
    proven: DesiredState | None = None


class OrderCheckpoint:
    """`<cache>/agent.json`: the newest accepted order and the last proven one."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / "agent.json"
        self._state = _SavedOrders()

    def read_orders(self) -> tuple[DesiredState | None, DesiredState | None]:
        """Return (accepted, proven); both are None if the file cannot be read."""
        try:
            self._state = _SavedOrders.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            self._state = _SavedOrders()
        return self._state.accepted, self._state.proven

    def save_orders(
        self, *, accepted: DesiredState | None = None, proven: DesiredState | None = None
    ) -> None:
        """Write the orders that changed; None leaves an order as it is.

        A full disk is logged and otherwise ignored: only a restarted agent would miss the file.
        """
        state = _SavedOrders(accepted=accepted or self._state.accepted, proven=proven or self._state.proven)
        if state == self._state:
            return
        self._state = state
        try:
            write_whole(self._path, state.model_dump_json())
        except OSError as error:
            log.warning("checkpoint_not_written", path=str(self._path), error=str(error))


def read_first_order(config_dir: Path) -> DesiredState | None:
    """Return the order that the pod was started with, None without one.

    Raises:
        ValueError: the file is there and is not an order.
    """
    path = config_dir / "desired.json"
    if not path.exists():
        return None
    return DesiredState.model_validate_json(path.read_bytes())


def ensure_control_key(run_dir: Path) -> str:
    """Return the key of Triton's restricted protocols, made once per pod: a restarted agent finds Triton's."""
    path = run_dir / "control-key"
    if path.exists():
        return path.read_text().strip()
    key = secrets.token_urlsafe(32)
    part = path.with_name(".control-key.part")
    part.touch(mode=CONTROL_KEY_MODE)
    part.chmod(CONTROL_KEY_MODE)
    part.write_text(key)
    part.replace(path)
    return key


def write_whole(path: Path, text: str) -> None:
    """Write the file atomically, in a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file; a copy if they are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
