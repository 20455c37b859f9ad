"""Publishes the ratings to NATS: python examples/movielens/publish_events.py --events FILE --url nats://HOST:4222

FILE is DIR/events.parquet of train.py. The stream MOVIELENS_RATINGS is made, or made again when it has other
events; ratings that it has already are not published twice. A stream of that name with another origin is not changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from movielens_din.events import EventsError
from movielens_din.stream import STREAM, SUBJECT, StreamError, publish_events


def main() -> int:
    """Publishes; exit status 1 with one clear line when it cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=Path, required=True, help="Parquet file that train.py wrote")
    parser.add_argument("--url", default="nats://127.0.0.1:4222", help="the NATS server [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        published = asyncio.run(publish_events(arguments.url, arguments.events, int(time.time() * 1000)))
    except (EventsError, StreamError) as error:
        print(f"publish_events.py: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(
            json.dumps(
                {
                    "stream": STREAM,
                    "subject": SUBJECT,
                    "count": published.count,
                    "shiftMs": published.shift_ms,
                    "isNew": published.is_new,
                }
            )
        )
        return 0
    state = f"published in {time.monotonic() - started:.1f} s" if published.is_new else "published before"
    days = published.shift_ms // 86_400_000
    print(f"stream {STREAM} has {published.count:,} ratings, moved by {days:,} days: {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
