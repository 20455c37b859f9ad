"""Record which source files a Python process executes functions of: from SIGUSR1 on, written as JSON at SIGUSR2.

Put this folder on PYTHONPATH. `TIDEGATE_RECORD_TO` is the file, `TIDEGATE_RECORD_ROOTS` the folders whose files count,
separated by colons.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_target = os.environ.get("TIDEGATE_RECORD_TO", "")
_roots = tuple(os.environ.get("TIDEGATE_RECORD_ROOTS", "").split(":"))
_counts: dict[str, int] = {}
_is_recording = False


def _count_call(frame: FrameType, event: str, _argument: Any) -> None:
    if _is_recording and event == "call":
        path = frame.f_code.co_filename
        if path.startswith(_roots) and frame.f_code.co_name != "<module>":
            _counts[path] = _counts.get(path, 0) + 1


def _begin_recording(_number: int, _frame: FrameType | None) -> None:
    global _is_recording
    _counts.clear()
    _is_recording = True


def _write_record(_number: int, _frame: FrameType | None) -> None:
    global _is_recording
    _is_recording = False
    part = Path(f"{_target}.part")
    part.write_text(json.dumps(_counts))
    part.replace(_target)


if _target:
    signal.signal(signal.SIGUSR1, _begin_recording)
    signal.signal(signal.SIGUSR2, _write_record)
    threading.setprofile(_count_call)
    sys.setprofile(_count_call)
