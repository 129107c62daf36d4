"""Requests that decode, counted together: between two events each of them only counts up."""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush

from kvhouse.core.queue import PLACE
from kvhouse.core.request import Request
from kvhouse.core.seen import Seen


class Member:
    """A request in a cohort; what it has computed and generated is worked out when asked for.

    Attributes:
        request: The request; its counters stand still meanwhile.
        place: Its place in the order.
        joined: The cohort's tick when it came.
        end: The tick in which it gets its last token.
        phase: It begins a block at the ticks that leave this rest.
        tables: The block ids of each group that grows.
        keyed: Whether it is known what some block holds that it has yet to fill.
    """

    __slots__ = ("end", "joined", "keyed", "phase", "place", "request", "tables")

    def __init__(
        self, request: Request, tick: int, tables: list[list[int]], *, keyed: bool
    ) -> None:
        self.request = request
        self.keyed = keyed
        self.place = request.place
        self.joined = tick
        self.end = tick + request.max_new_tokens - request.generated - 1
        self.tables = tables
        self.phase = 0

    def sync(self, tick: int) -> None:
        """Write down in the request what it has computed and generated before ``tick``."""
        gone = tick - self.joined
        self.request.computed += gone
        self.request.generated += gone
        self.joined = tick


class Cohort:
    """Requests that compute one token each in every tick.

    A tick is a step in which the cohort takes part. Who begins a block in a tick and who ends
    with it is known from the moment a request joins, so a tick costs only what happens in it.

    Attributes:
        tick: The next tick.
        size: Members.
        computed: Tokens that all members together have computed.
        keyed: Members of which it is known what a block holds that they have yet to fill.
        members: By the request's id.
    """

    def __init__(self, block_size: int, windows: tuple[int, ...] = ()) -> None:
        """Begin without members.

        Args:
            block_size: Tokens to a block.
            windows: The lengths of windows that layers keep, in tokens.
        """
        self.tick = self.size = self.computed = self.keyed = 0
        self.members: dict[int, Member] = {}
        #: What layers with these windows need of the members' tokens.
        self.seen = [Seen(window) for window in windows]
        #: Members whose first tick has yet to come, where there are windows.
        self._fresh: list[Member] = []
        #: How many ticks ago members began a block that can begin or pass out of a window now.
        self._turns = sorted({0, *(seen.most % block_size for seen in self.seen)})
        self._block_size = block_size
        #: For each rest, who begins a block at the ticks that leave it, in order.
        self._beginning = [_NOBODY] * block_size
        #: How many these are.
        self._counts = [0] * block_size
        self._ending: dict[int, list[Member]] = {}
        self._ends: list[int] = []
        #: Ticks in which members begin their last blocks, and the tokens that these have beyond
        #: what will be filled.
        self._excess: list[tuple[int, int]] = []

    def add(self, request: Request, tables: list[list[int]], *, keyed: bool) -> None:
        """Take in a request that decodes; the next token that it computes is in the next tick."""
        member = Member(request, self.tick, tables, keyed=keyed)
        self.members[request.id] = member
        self.size += 1
        self.keyed += keyed
        self.computed += request.computed
        if tables:
            self._let_begin(member)
        if self.seen:
            self._fresh.append(member)
            for seen in self.seen:
                seen.add(request.id, request.computed, self.tick)
        if member.end in self._ending:
            self._ending[member.end].append(member)
        else:
            self._ending[member.end] = [member]
            heappush(self._ends, member.end)

    def _let_begin(self, member: Member) -> None:
        """Note in which ticks a member begins blocks."""
        member.phase = (self.tick - member.request.computed) % self._block_size
        self._counts[member.phase] += 1
        peers = self._beginning[member.phase]
        if not peers:
            self._beginning[member.phase] = [member]
        elif peers[-1].place > member.place:
            insort(peers, member, key=PLACE)
        else:
            peers.append(member)
        after = (member.end - member.phase) % self._block_size
        last, excess = member.end - after, self._block_size - after - 1
        if excess and last >= self.tick:
            heappush(self._excess, (last, excess))

    def beginning(self, tick: int) -> list[Member]:
        """Who computes the first token of a block in a tick, in order; not to be changed."""
        return self._beginning[tick % self._block_size]

    def due(self, tick: int) -> list[Member]:
        """Who may take or let go of blocks in a tick, in no order; asked once for each tick."""
        ring, size = self._beginning, self._block_size
        found: list[Member] = []
        for turn in self._turns:
            found += ring[(tick - turn) % size]
        if self._fresh:
            found += [m for m in self._fresh if (tick - m.phase) % size not in self._turns]
            self._fresh = []
        return found

    def beginning_in(self, ticks: range) -> tuple[list[list[Member]], list[int]]:
        """The same for each of many ticks, and how many they are in each."""
        first = ticks.start % self._block_size
        end = first + len(ticks)
        if end <= self._block_size:
            return self._beginning[first:end], self._counts[first:end]
        rounds = -(-end // self._block_size)
        return (self._beginning * rounds)[first:end], (self._counts * rounds)[first:end]

    def excess_in(self, first: int, end: int) -> list[tuple[int, int]]:
        """Once for each tick, in their order: which ticks begin members' last blocks.

        Args:
            first: The first of these ticks.
            end: The tick after the last.

        Returns:
            The place of the tick among these, and the tokens of such a block that its request
            will never fill.
        """
        found: list[tuple[int, int]] = []
        while self._excess and self._excess[0][0] < end:
            tick, tokens = heappop(self._excess)
            found.append((tick - first, tokens))
        return found

    @property
    def until_end(self) -> int:
        """Ticks up to the first that ends a member's request, that one included."""
        return self._ends[0] - self.tick + 1

    def advance(self, ticks: int) -> list[Request]:
        """Count up, to the end of the first tick that ends a request at the furthest.

        Returns:
            The requests that ended, taken out and with their counters written down.
        """
        self.tick += ticks
        self.computed += ticks * self.size
        for seen in self.seen:
            seen.advance(ticks, self.tick)
        if not self._ends or self._ends[0] >= self.tick:
            return []
        ended = self._ending.pop(heappop(self._ends))
        for member in ended:
            member.sync(self.tick)
            request = member.request
            del self.members[request.id]
            self.computed -= request.computed
            for seen in self.seen:
                seen.remove(request.id, request.computed)
            self.keyed -= member.keyed
            if member.tables:
                self._beginning[member.phase].remove(member)
                self._counts[member.phase] -= 1
        self.size -= len(ended)
        return [member.request for member in ended]

    def computed_by(self, request: Request) -> int:
        """Tokens that a request has computed, whether it is a member or not."""
        member = self.members.get(request.id)
        return request.computed + (self.tick - member.joined if member else 0)

    def sync(self) -> None:
        """Write down in every request what it has computed and generated."""
        for member in self.members.values():
            member.sync(self.tick)


_NOBODY: list[Member] = []
