"""The clients that could start now: those that are there and not under way."""

from collections.abc import Iterator

from ccfl_jax.clock.availability_events import Changes


class Pool:
    """The clients that could start: those that are there and not under way."""

    def __init__(self, blocks: Iterator[Changes]) -> None:
        self.blocks, self.idle, self.place = blocks, [], {}
        self.there: set[int] = set()
        self.busy: set[int] = set()
        self._load()

    def _load(self) -> None:
        block = next(self.blocks)
        self.end, self.at = block.end, 0
        self.times = block.time.tolist()
        self.what = list(zip(block.client.tolist(), block.available.tolist(), strict=True))
        self.next = self.times[0] if self.times else self.end

    def change(self, now: float) -> None:
        """All that changes up to `now`."""
        while self.next <= now:
            if self.at == len(self.times):
                self._load()
                continue
            client, available = self.what[self.at]
            self._set(client, available)
            self.at += 1
            self.next = self.times[self.at] if self.at < len(self.times) else self.end

    def _set(self, client: int, available: bool) -> None:
        if available:
            self.there.add(client)
            if client not in self.busy:
                self._add(client)
            return
        self.there.discard(client)
        if client in self.place:
            self._remove(client)

    def take(self, u: float) -> int:
        """One of them, for a number u uniform in [0, 1); it is under way from now on."""
        client = self.idle[int(u * len(self.idle))]
        self._remove(client)
        self.busy.add(client)
        return client

    def give_back(self, client: int) -> None:
        """Its task is over."""
        self.busy.discard(client)
        if client in self.there:
            self._add(client)

    def _add(self, client: int) -> None:
        self.place[client] = len(self.idle)
        self.idle.append(client)

    def _remove(self, client: int) -> None:
        place, last = self.place.pop(client), self.idle.pop()
        if last != client:
            self.idle[place] = last
            self.place[last] = place
