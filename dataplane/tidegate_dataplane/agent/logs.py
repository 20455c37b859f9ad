"""Log format of every process beside a model or on a node: one JSON object per line."""

import structlog


def log_as_json() -> None:
    """Log one JSON object per line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ]
    )
