"""Stands before a Prometheus and changes what it says; tests run this file in a pod, so it has the standard library alone."""

import http.server
import json
import os
import urllib.request
from collections.abc import Callable
from typing import Any

LIES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "truth": lambda result: result,
    "NaN": lambda result: [{**each, "value": [each["value"][0], "NaN"]} for each in result],
    "nothing": lambda result: [],
    "tenfold": lambda result: [
        {**each, "value": [each["value"][0], str(10 * float(each["value"][1]))]} for each in result
    ],
}


class Liar(http.server.BaseHTTPRequestHandler):
    """GET /lie/HOW chooses; everything else is asked of the real one, at $REAL."""

    how = "truth"

    def do_GET(self) -> None:
        if self.path.startswith("/lie/"):
            Liar.how = self.path.rpartition("/")[2]
            self.answer(Liar.how.encode())
        else:
            self.ask(None)

    def do_POST(self) -> None:
        self.ask(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def ask(self, body: bytes | None) -> None:
        headers = {"Content-Type": self.headers.get("Content-Type", "")} if body is not None else {}
        asked = urllib.request.Request(os.environ["REAL"] + self.path, body, headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            text = answer.read()
        if "/query" in self.path:
            said = json.loads(text)
            said["data"]["result"] = LIES[Liar.how](said["data"]["result"])
            text = json.dumps(said).encode()
        self.answer(text)

    def answer(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("", 9090), Liar).serve_forever()
