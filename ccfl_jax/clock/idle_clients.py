"""Idle clients: available and not training."""

from collections.abc import Iterator

from ccfl_jax.clock.availability_events import Changes


class Pool:
    """The idle clients, as availability changes and tasks begin and end."""

    def __init__(self, blocks: Iterator[Changes]) -> None:
        self.blocks, self.idle, self.place = blocks, [], {}
        self.available: set[int] = set()
        self.busy: set[int] = set()
        self._load()

    def _load(self) -> None:
        block = next(self.blocks)
        self.end, self.at = block.end, 0
        self.times = block.time.tolist()
        self.what = list(zip(block.client.tolist(), block.available.tolist(), strict=True))
        self.next = self.times[0] if self.times else self.end

    def change(self, now: float) -> None:
        """Applies all changes of availability up to `now`."""
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
            self.available.add(client)
            if client not in self.busy:
                self._add(client)
            return
        self.available.discard(client)
        if client in self.place:
            self._remove(client)

    def take(self, u: float) -> int:
        """An idle client, chosen by u in [0, 1); it trains from now on."""
        client = self.idle[int(u * len(self.idle))]
        self._remove(client)
        self.busy.add(client)
        return client

    def give_back(self, client: int) -> None:
        """The client's task is over."""
        self.busy.discard(client)
        if client in self.available:
            self._add(client)

    def _add(self, client: int) -> None:
        self.place[client] = len(self.idle)
        self.idle.append(client)

    def _remove(self, client: int) -> None:
        place, last = self.place.pop(client), self.idle.pop()
        if last != client:
            self.idle[place] = last
            self.place[last] = place
