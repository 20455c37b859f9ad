"""Compute features offline: `python -m tidegate_dataplane.features`, with an OfflineOrder as JSON on stdin.

Each line on stdout is an OfflineMessage; the last one has the error if the exit status is 1.
"""

import os
import signal
import sys

from tidegate_dataplane.contract import OfflineMessage, OfflineOrder


def compute_offline() -> int:
    """Execute the order on stdin; return the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    order = OfflineOrder.model_validate_json(sys.stdin.buffer.read())
    try:
        error = _run_order(order)
        if error is not None:
            _send_message(OfflineMessage(error=error))
    except BrokenPipeError:
        # Whoever ordered this is gone. Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if error is None else 1


def _run_order(order: OfflineOrder) -> str | None:
    """Return why the run failed; None if it did not."""
    try:
        from tidegate_dataplane.features.errors import FeatureError
        from tidegate_dataplane.features.offline_run import run_order
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: install tidegate[features]"
    try:
        run_order(order, _send_message)
    except BrokenPipeError:
        raise
    except (FeatureError, OSError) as error:
        return str(error)
    except MemoryError:
        return "there is not enough memory for the events of all streams at once"
    return None


def _send_message(message: OfflineMessage) -> None:
    sys.stdout.write(message.model_dump_json(by_alias=True, exclude_none=True) + "\n")
    sys.stdout.flush()


def _exit_cleanly(number: int, frame: object) -> None:
    """End by an exception, so that a partial file is removed."""
    del frame
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(compute_offline())
