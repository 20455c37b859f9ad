"""A closed loop of gRPC clients on one Triton, as a process: `triton_load.py ADDRESS {"rows", "seconds", "clients"}`.

Prints a line of JSON when it is ready, waits for a line, and prints its result, as worker.py does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib import import_module
from typing import Any

import grpc
import torch
from worker import REQUESTS, TOLERANCE, AttentionModel, finish_with, make_request, wait_for_start

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_messages: Any = import_module("tritonclient.grpc.service_pb2")


def make_message(history: torch.Tensor, target: torch.Tensor) -> bytes:
    """Return the request as it is sent."""
    message = _messages.ModelInferRequest(model_name="attention")
    for name, tensor in (("history", history), ("target", target)):
        message.inputs.add(name=name, datatype="INT64", shape=list(tensor.shape))
        message.raw_input_contents.append(bytes(memoryview(tensor.numpy())))
    return bytes(message.SerializeToString())


def main() -> None:
    """Run the clients, for each number of rows."""
    options = json.loads(sys.argv[2])
    model = AttentionModel().eval()
    loads = [ClientLoad(model, sys.argv[1], rows, options["clients"]) for rows in options["rows"]]
    for load in loads:
        load.connect()
        wait_for_start()
        finish_with(**load.measure(options["seconds"]))


class ClientLoad:
    """A closed loop of requests of one number of rows by each of several clients."""

    def __init__(self, model: AttentionModel, address: str, rows: int, clients: int) -> None:
        """Compute the correct answers."""
        requests = [make_request(rows, seed) for seed in range(REQUESTS)]
        with torch.inference_mode():
            self._correct = [model(history, target)[:, 0] for history, target in requests]
        self._bodies = [make_message(*request) for request in requests]
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(address, options=options) for _ in range(clients)]
        parse = _messages.ModelInferResponse.FromString
        self._callers = [channel.unary_unary(_METHOD, None, parse) for channel in channels]
        self._latencies: list[float] = []
        self._wrong: list[int] = []
        self._errors: list[str] = []

    def connect(self) -> None:
        """Wait for the server, and send a request of each client."""
        for ask in self._callers:
            ask(self._bodies[0], timeout=90, wait_for_ready=True)

    def measure(self, seconds: float) -> dict[str, Any]:
        """Return latencies in ms, and the numbers of wrong answers and of errors."""
        began = time.monotonic()
        threads = [
            threading.Thread(target=self._send_requests, args=(number, ask, began + seconds))
            for number, ask in enumerate(self._callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            "seconds": time.monotonic() - began,
            "latencies_ms": [round(value * 1000, 4) for value in self._latencies],
            "wrong": len(self._wrong),
            "errors": self._errors,
        }

    def _send_requests(self, number: int, ask: Any, deadline: float) -> None:
        position = number
        try:
            while (began := time.monotonic()) < deadline:
                which = position % REQUESTS
                answer = ask(self._bodies[which], timeout=30)
                self._latencies.append(time.monotonic() - began)
                scores = torch.frombuffer(bytearray(answer.raw_output_contents[0]), dtype=torch.float32)
                if not torch.allclose(scores, self._correct[which], atol=TOLERANCE):
                    self._wrong.append(which)
                position += 1
        except grpc.RpcError as error:
            self._errors.append(str(error)[:200])


if __name__ == "__main__":
    main()
