"""Asks each address until it says yes; ends with 1, and what the last answer was, when one has not after so many seconds."""

import http.client
import sys
import time
import urllib.request

PAUSE_S = 1.0
REQUEST_S = 5.0

wait_s, missing = float(sys.argv[1]), sys.argv[2:]
until = time.monotonic() + wait_s
while missing:
    try:
        with urllib.request.urlopen(missing[0], timeout=REQUEST_S) as answer:
            print("ok", missing[0], answer.status, flush=True)
        del missing[0]
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() > until:
            sys.exit(f"not ready in {wait_s:.0f} s: {missing[0]}: {error}")
        time.sleep(PAUSE_S)
