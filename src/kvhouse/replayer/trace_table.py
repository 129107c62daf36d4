"""Many requests in little memory: one array for each attribute."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import overload

from kvhouse.replayer.trace_request import TraceRequest


class _Names:
    """Texts kept once and referred to by number; None is -1."""

    def __init__(self) -> None:
        self.numbers = array("i")
        self.texts: list[str] = []
        self._number_of: dict[str, int] = {}

    def append(self, text: str | None) -> None:
        if text is None:
            self.numbers.append(-1)
            return
        number = self._number_of.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        self.numbers.append(number)

    def __getitem__(self, index: int) -> str | None:
        number = self.numbers[index]
        return None if number < 0 else self.texts[number]

    def __iter__(self) -> Iterator[str | None]:
        texts = self.texts
        if not texts:
            return repeat(None, len(self.numbers))
        return (None if number < 0 else texts[number] for number in self.numbers)


class TraceTable(Sequence[TraceRequest]):
    """An immutable sequence of requests that makes each ``TraceRequest`` when it is asked for.

    A request takes 56 bytes, each of its hash ids another 8, and a distinct tenant or prefix id its
    text once.

    Attributes:
        total_tokens: Prompt and output tokens of all requests.
        in_order: Whether no request arrives before the one in front of it.
    """

    def __init__(self, requests: Iterable[TraceRequest] = ()) -> None:
        self._arrival = array("d")
        self._prompt, self._output, self._hash_block = array("i"), array("i"), array("i")
        self._prefix_tokens, self._cached, self._priority = array("i"), array("i"), array("q")
        self._prefix, self._tenant = _Names(), _Names()
        self._ids, self._ids_end = array("q"), array("q", [0])
        self.total_tokens = 0
        self.in_order = True
        for request in requests:
            self._append(request)

    def _append(self, request: TraceRequest) -> None:
        if self._arrival and request.arrival < self._arrival[-1]:
            self.in_order = False
        self._arrival.append(request.arrival)
        self._prompt.append(request.prompt_tokens)
        self._output.append(request.output_tokens)
        self._hash_block.append(request.hash_block)
        self._ids.extend(request.hash_ids)
        self._ids_end.append(len(self._ids))
        self._prefix.append(request.prefix_id)
        self._prefix_tokens.append(request.prefix_tokens)
        self._tenant.append(request.tenant)
        self._priority.append(request.priority)
        self._cached.append(request.cached_tokens)
        self.total_tokens += request.prompt_tokens + request.output_tokens

    def _at(self, index: int) -> TraceRequest:
        begin, end = self._ids_end[index], self._ids_end[index + 1]
        return TraceRequest(
            self._arrival[index],
            self._prompt[index],
            self._output[index],
            tuple(self._ids[begin:end]) if end > begin else (),
            self._hash_block[index],
            self._prefix[index],
            self._prefix_tokens[index],
            self._tenant[index],
            self._priority[index],
            self._cached[index],
        )

    def __len__(self) -> int:
        return len(self._arrival)

    def __iter__(self) -> Iterator[TraceRequest]:
        ids, ends = self._ids, self._ids_end
        hash_ids: Iterable[tuple[int, ...]] = repeat((), len(self))
        if ids:
            hash_ids = (tuple(ids[begin:end]) for begin, end in pairwise(ends))
        return map(
            TraceRequest,
            self._arrival,
            self._prompt,
            self._output,
            hash_ids,
            self._hash_block,
            self._prefix,
            self._prefix_tokens,
            self._tenant,
            self._priority,
            self._cached,
        )

    @overload
    def __getitem__(self, index: int) -> TraceRequest: ...

    @overload
    def __getitem__(self, index: slice) -> TraceTable: ...

    def __getitem__(self, index: int | slice) -> TraceRequest | TraceTable:
        if isinstance(index, slice):
            return TraceTable(map(self._at, range(len(self))[index]))
        return self._at(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TraceTable | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    @property
    def rate(self) -> float | None:
        """Arrivals per second, between the first and the last; None where all come at once."""
        if not self._arrival or (span := max(self._arrival) - min(self._arrival)) == 0:
            return None
        return (len(self) - 1) / span

    def digest(self) -> str:
        """A hash of all requests, in hexadecimal; the same on machines of one kind."""
        digest = hashlib.sha256()
        for name in self.__dict__:
            column = getattr(self, name)
            if isinstance(column, _Names):
                digest.update(repr(column.texts).encode())
                column = column.numbers
            if isinstance(column, array):
                digest.update(f"{name} {column.typecode} {len(column)};".encode())
                digest.update(column.tobytes())
        return digest.hexdigest()

    def __hash__(self) -> int:
        return hash(tuple(self))  # as an equal tuple has
