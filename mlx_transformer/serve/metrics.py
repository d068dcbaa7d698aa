"""What the server counts, in the text format of Prometheus."""

import time
from bisect import bisect_left
from collections import Counter, deque

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
RECENT = 10.0  # seconds over which speeds are taken
PREFIX = "mlx_transformer"


class Metrics:
    """Counters; the engine's thread writes some of them, the server's the others."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = 0  # requests under way
        self.sentences = 0
        self.tokens = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latencies = [0] * (len(BOUNDS) + 1)
        self._latency_sum = 0.0
        self._recent: deque[tuple[float, int]] = deque()  # when a sentence was done, its tokens

    def translated(self, tokens: int) -> None:
        self.sentences += 1
        self.tokens += tokens
        now = time.monotonic()
        self._recent.append((now, tokens))
        while self._recent[0][0] < now - RECENT:
            self._recent.popleft()

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._latencies[bisect_left(BOUNDS, seconds)] += 1
        self._latency_sum += seconds

    def seconds_for(self, sentences: int) -> int:
        """How long so many sentences will take, as far as the last ones tell."""
        rate = len(self._lately()) / RECENT
        return min(60, max(1, round(sentences / max(rate, 1))))

    def text(self) -> str:
        tokens = sum(count for _, count in self._lately())
        lines = [
            *_metric("waiting_sentences", "gauge", "Sentences in the queue", self.waiting),
            *_metric("requests_open", "gauge", "Requests under way", self.open),
            *_metric("sentences_total", "counter", "Sentences translated", self.sentences),
            *_metric("tokens_total", "counter", "Tokens written", self.tokens),
            *_metric("tokens_per_second", "gauge", "Over the last seconds", tokens / RECENT),
            *self._request_lines(),
            *self._latency_lines(),
        ]
        return "\n".join(lines) + "\n"

    def _lately(self) -> list[tuple[float, int]]:
        since = time.monotonic() - RECENT
        return [each for each in tuple(self._recent) if each[0] >= since]

    def _request_lines(self) -> list[str]:
        name = f"{PREFIX}_requests_total"
        return [
            f"# HELP {name} Requests answered",
            f"# TYPE {name} counter",
            *(
                f'{name}{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._requests.items())
            ),
        ]

    def _latency_lines(self) -> list[str]:
        name = f"{PREFIX}_request_seconds"
        totals = [sum(self._latencies[: i + 1]) for i in range(len(self._latencies))]
        bounds = [*map(str, BOUNDS), "+Inf"]
        return [
            f"# HELP {name} Time from a request to the end of its answer",
            f"# TYPE {name} histogram",
            *(f'{name}_bucket{{le="{le}"}} {n}' for le, n in zip(bounds, totals, strict=True)),
            f"{name}_sum {self._latency_sum:.6f}",
            f"{name}_count {totals[-1]}",
        ]


def _metric(name: str, kind: str, help_text: str, value: float) -> list[str]:
    name = f"{PREFIX}_{name}"
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
