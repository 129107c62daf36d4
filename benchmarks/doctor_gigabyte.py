"""Time and memory of ``kvhouse doctor`` on a log of 1 GiB.

Usage: python benchmarks/doctor_gigabyte.py [MIB]

The log is made up on the way and never stored: a start of vLLM, then what a busy server writes,
ten lines of requests to each line of statistics. Prints seconds and MiB, and exits with 1 where
they are above 20 s for each GiB, or above 200 MiB.
"""

from __future__ import annotations

import io
import resource
import sys
import time

from kvhouse.doctor import examine

SECONDS, MEBIBYTES = 20.0, 200.0
START = (
    b"INFO [core.py:109] Initializing a V1 LLM engine (v0.11.0) with config: "
    b"model='Qwen/Qwen3-14B', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1\n"
    b"INFO [gpu_worker.py:298] Available KV cache memory: 6.51 GiB\n"
    b"INFO [kv_cache_utils.py:1087] GPU KV cache size: 42,656 tokens\n"
)
REQUEST = (
    b'(APIServer pid=1) INFO:     10.0.0.%d:60988 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
STATISTICS = (
    b"(APIServer pid=1) INFO 02-25 20:49:56 [loggers.py:127] Engine 000: Avg prompt throughput: "
    b"6735.6 tokens/s, Avg generation throughput: 75.0 tokens/s, Running: %d reqs, Waiting: 0 "
    b"reqs, GPU KV cache usage: 13.9%%, Prefix cache hit rate: 54.2%%\n"
)


class Log(io.RawIOBase):
    """A log of so many bytes."""

    def __init__(self, size: int) -> None:
        """Make the part that repeats."""
        lines = [
            STATISTICS % (n % 99) if n % 11 == 0 else REQUEST % (n % 250) for n in range(11000)
        ]
        self._head, self._block = START, b"".join(lines)
        self._left, self._at = size, 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most so many."""
        if self._head:
            head, self._head = self._head, b""
            return head
        chunk = self._block[self._at : self._at + min(size, self._left)]
        self._at = (self._at + len(chunk)) % len(self._block)
        self._left -= len(chunk)
        return chunk


def main(arguments: list[str]) -> int:
    """Examine a log of the size that is named, 1 GiB by default."""
    mebibytes = int(arguments[0]) if arguments else 1024
    began = time.perf_counter()
    report = examine(Log(mebibytes * 2**20))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{report.log.size / 2**20:,.0f} MiB, {report.log.lines:,} lines: {seconds:.1f} s, "
        f"{time.process_time():.1f} s of CPU, {peak:.0f} MiB at most; "
        f"{len(report.facts)} facts, {report.log.tried:,} regexes"
    )
    return int(seconds > SECONDS * mebibytes / 1024 or peak > MEBIBYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
