"""Run the compiler of a pod: `python3 -m tidegate_dataplane.compiler`."""

import os
import sys

from tidegate_dataplane.agent.logs import log_as_json
from tidegate_dataplane.agent.stopping import catch_stop_signals
from tidegate_dataplane.compiler.process import Compiler
from tidegate_dataplane.compiler.settings import CompilerSettings


def run_compiler() -> int:
    """Compile until SIGTERM or SIGINT; return the exit status."""
    log_as_json()
    stop = catch_stop_signals()
    settings = CompilerSettings.from_environment(os.environ)
    settings.exchange_dir.mkdir(parents=True, exist_ok=True)
    Compiler(settings, stop.is_set).compile_jobs()
    return 0


if __name__ == "__main__":
    sys.exit(run_compiler())
