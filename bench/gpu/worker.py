"""A process on a GPU, which a bench steers: it prints a line of JSON when it is ready, waits for a line, and prints its result.

    python bench/gpu/worker.py ROLE [JSON]

Needs PyTorch, and CuPy for the roles `steps` and `fault`. The roles:

serve   answers requests of a model of attention over histories in `streams` threads, with a CUDA graph and a stream each
steps   runs a kernel that writes down when each of its steps began, by the clock of the GPU
hog     multiplies large matrices until its standard input ends, and stays connected until then if it loses the GPU
memory  allocates blocks until it cannot, and holds them until its standard input ends
fault   writes to an address that is not mapped
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import torch

HISTORY = 50
ENTRIES = 1_000_000
WIDTH = 64
REQUESTS = 8
TOLERANCE = 1e-3
"""Of a score between 0 and 1."""
_STEP_KERNEL = """
extern "C" __global__ void write_steps(unsigned long long *times, int steps, float *sink) {
  float value = threadIdx.x;
  for (int step = 0; step < steps; step++) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      unsigned long long now;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      times[step] = now;
    }
    for (int turn = 0; turn < 5000; turn++) value = value * 1.0001f + 0.5f;
  }
  if (value == 0.0f) sink[0] = value;
}
"""
_FAULT_KERNEL = 'extern "C" __global__ void write_outside(int *place) { place[threadIdx.x] = 1; }'


class AttentionModel(torch.nn.Module):
    """Scores of items by attention of each over a history of 50: float32 [rows, 1]."""

    def __init__(self) -> None:
        """Make the weights; the same in every process."""
        super().__init__()
        torch.manual_seed(7)
        nn = torch.nn
        self.items = nn.Embedding(ENTRIES, WIDTH)
        self.attention = nn.Sequential(
            nn.Linear(4 * WIDTH, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, 1)
        )
        self.head = nn.Sequential(
            nn.Linear(2 * WIDTH, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, history: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the scores for a history, int64 [rows, 50], and a target, int64 [rows, 1]."""
        events, item = self.items(history), self.items(target)
        query = item.expand_as(events)
        weights = self.attention(torch.cat([query, events, query - events, query * events], -1))
        user = (weights * events).sum(1)
        return torch.sigmoid(self.head(torch.cat([user, item[:, 0]], -1)))


class CapturedModel:
    """The model for one number of rows, captured as a CUDA graph on a stream of its own."""

    def __init__(self, model: AttentionModel, rows: int) -> None:
        """Capture `model` for `rows` rows."""
        self._stream = torch.cuda.Stream()
        self._history = torch.zeros((rows, HISTORY), dtype=torch.int64, device="cuda")
        self._target = torch.zeros((rows, 1), dtype=torch.int64, device="cuda")
        self._answer = torch.empty((rows, 1), dtype=torch.float32).pin_memory()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(3):
                model(self._history, self._target)
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._scores = model(self._history, self._target)

    def compute_scores(self, history: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the scores of a request; the next call overwrites them."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._history.copy_(history, non_blocking=True)
            self._target.copy_(target, non_blocking=True)
            self._graph.replay()
            self._answer.copy_(self._scores, non_blocking=True)
        self._stream.synchronize()
        return self._answer


def make_request(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a history and a target."""
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(0, ENTRIES, (rows, HISTORY), generator=generator)
    return history, torch.randint(0, ENTRIES, (rows, 1), generator=generator)


def run_serve(options: dict[str, Any]) -> None:
    """Answer requests for `seconds` in `streams` threads, for each number of rows; answers are compared with the model's."""
    streams = options.get("streams", 1)
    model = AttentionModel().cuda().eval()
    loads = [StreamLoad(model, rows, streams) for rows in options["rows"]]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    for load in loads:
        wait_for_start(multiprocessors=multiprocessors)
        finish_with(**load.measure(options["seconds"]))


class StreamLoad:
    """A closed loop of requests of one number of rows in each of several streams."""

    def __init__(self, model: AttentionModel, rows: int, streams: int) -> None:
        """Capture the model on each stream, and compute the correct answers."""
        requests = [make_request(rows, seed) for seed in range(REQUESTS)]
        with torch.inference_mode():
            self._correct = [model(history.cuda(), target.cuda()).cpu() for history, target in requests]
        self._requests = [(history.pin_memory(), target.pin_memory()) for history, target in requests]
        self._captured = [CapturedModel(model, rows) for _ in range(streams)]
        for captured in self._captured:
            captured.compute_scores(*self._requests[0])
        self._latencies: list[list[float]] = [[] for _ in range(streams)]
        self._wrong = [0] * streams
        self._errors: list[str] = []

    def measure(self, seconds: float) -> dict[str, Any]:
        """Return latencies in ms, and the numbers of wrong answers and of errors."""
        began = time.monotonic()
        threads = [
            threading.Thread(target=self._answer_requests, args=(number, began + seconds))
            for number in range(len(self._captured))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            "seconds": time.monotonic() - began,
            "latencies_ms": [round(value * 1000, 4) for values in self._latencies for value in values],
            "wrong": sum(self._wrong),
            "errors": self._errors,
        }

    def _answer_requests(self, number: int, deadline: float) -> None:
        position = number
        try:
            while (began := time.monotonic()) < deadline:
                which = position % REQUESTS
                answer = self._captured[number].compute_scores(*self._requests[which])
                self._latencies[number].append(time.monotonic() - began)
                self._wrong[number] += not torch.allclose(answer, self._correct[which], atol=TOLERANCE)
                position += 1
        except RuntimeError as error:
            self._errors.append(str(error).splitlines()[0])


def run_steps(options: dict[str, Any]) -> None:
    """Run a kernel of `blocks` blocks and `steps` steps of about ten microseconds; print when each began, in ns."""
    import cupy

    kernel = cupy.RawKernel(_STEP_KERNEL, "write_steps")
    steps = options["steps"]
    times, sink = cupy.zeros(steps, dtype=cupy.uint64), cupy.zeros(1, dtype=cupy.float32)

    def run_kernel(count: int) -> None:
        kernel((options["blocks"],), (128,), (times, cupy.int32(count), sink))
        cupy.cuda.Device().synchronize()

    run_kernel(10)
    wait_for_start()
    run_kernel(steps)
    finish_with(times_ns=times.get().tolist())


def run_hog(_options: dict[str, Any]) -> None:
    """Multiply matrices of 8,192 rows in bf16, two at a time, until standard input ends."""
    first = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    second = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.mm(first, second)
    torch.cuda.synchronize()
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    wait_for_start(multiprocessors=multiprocessors)
    ended = watch_input()
    count, began = 0, time.monotonic()
    try:
        while not ended.is_set():
            torch.mm(first, second)
            torch.mm(first, second)
            torch.cuda.synchronize()
            count += 2
    except RuntimeError as error:
        finish_with(products=count, error=str(error).splitlines()[0])
        ended.wait()
        return
    seconds = time.monotonic() - began
    finish_with(products=count, tflops=round(count * 2 * 8192**3 / seconds / 1e12, 1), error="")


def run_memory(options: dict[str, Any]) -> None:
    """Allocate blocks of 256 MiB up to `limit_mib`, and hold them until standard input ends."""
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    wait_for_start(free_mib=free >> 20, total_mib=total >> 20)
    blocks, message = [], ""
    try:
        while len(blocks) * 256 < options["limit_mib"]:
            blocks.append(torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    print_line({"allocated_mib": len(blocks) * 256, "error": message})
    sys.stdin.read()


def run_fault(_options: dict[str, Any]) -> None:
    """Write to an address that is not mapped; print the error."""
    import cupy

    kernel = cupy.RawKernel(_FAULT_KERNEL, "write_outside")
    kernel.compile()
    torch.zeros(1, device="cuda")
    wait_for_start()
    try:
        kernel((1,), (32,), (cupy.uint64(0x10),))
        cupy.cuda.Device().synchronize()
        message = ""
    except Exception as error:  # noqa: BLE001 - the error is the result
        message = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print_line({"error": message})
    # The process ends without cleaning up on a GPU that it has lost.
    os._exit(0)


def wait_for_start(**facts: Any) -> None:
    """Print that the process is ready, and wait for a line."""
    print_line({"ready": True, "pid": os.getpid(), **facts})
    sys.stdin.readline()


def watch_input() -> threading.Event:
    """Return an event that is set when standard input ends."""
    ended = threading.Event()

    def read_input() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read_input, daemon=True).start()
    return ended


def finish_with(**result: Any) -> None:
    """Print the result."""
    print_line(result)


def print_line(document: dict[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(document), flush=True)


ROLES = {"serve": run_serve, "steps": run_steps, "hog": run_hog, "memory": run_memory, "fault": run_fault}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
