"""How much a client may ask for."""

import time
from collections import OrderedDict
from dataclasses import dataclass

MOST_ADDRESSES = 10_000  # remembered by the rate limit


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may hold, and how long it may take."""

    characters: int = 50_000  # of all its texts together
    texts: int = 256
    alternatives: int = 9
    body: int = 1 << 20  # bytes
    seconds: float = 60.0
    send_seconds: float = 10.0  # for the client to send the request
    queue: int = 4096  # sentences that wait
    rate: int | None = None  # requests a minute and address


class Rate:
    """So many requests a minute from one address; a minute's worth may come at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def wait(self, address: str) -> float:
        """Seconds until this address may ask again: 0 is now, and counts as having asked."""
        now = time.monotonic()
        left, then = self._left.pop(address, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        allowed = left >= 1
        self._left[address] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST_ADDRESSES:
            self._left.popitem(last=False)  # the one that has been silent longest
        return 0.0 if allowed else (1 - left) * 60 / self._per_minute
