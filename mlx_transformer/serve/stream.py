"""Translations as server-sent events: words as soon as they are certain."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any

from mlx_transformer.decoding.alignment import word_texts
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.serve.guard import RefusedError

Event = tuple[str, dict[str, Any]]


class Events:
    """What the engine's thread tells, handed over to the server's loop: an engine's `Watcher`."""

    def __init__(self, detected: dict[str, Any] | None, *, is_direct: bool = True) -> None:
        """By way of a third language, sentences have no counterparts in the text: none is told."""
        self._detected, self._is_direct = detected, is_direct
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._told: defaultdict[int, str] = defaultdict(str)

    def began(self, lines: list[int]) -> None:
        self._put(("start", {"detectedLanguage": self._detected, "lines": lines}))

    def grew(self, sentence: int, text: str) -> None:
        told = self._told[sentence]
        if len(text) > len(told) and text.startswith(told):
            self._told[sentence] = text
            self._put(("piece", {"sentence": sentence, "text": text[len(told) :]}))

    def finished(self, sentence: int, source: str, translation: Translation) -> None:
        self.grew(sentence, translation.text)
        told = as_object(source, translation)
        if not self._is_direct:
            told |= {"source": "", "sourceWords": [], "alignment": []}
        self._put(("sentence", {"sentence": sentence, **told}))

    async def during(self, work: Awaitable[Event]) -> AsyncIterator[Event]:
        """The events of some work, the last of which is its result or what went wrong."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            while event := await self._queue.get():
                yield event
            try:
                yield task.result()
            except RefusedError as refused:
                yield "error", {"error": refused.reason}
        finally:
            task.cancel()

    def _put(self, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


def as_object(source: str, found: Translation) -> dict[str, Any]:
    """A sentence with its words; `alignment` pairs the numbers of source words and of words."""
    return {
        "source": source,
        "text": found.text,
        "sourceWords": word_texts(source, found.source_tokens),
        "words": word_texts(found.text, found.tokens),
        "alignment": found.alignment or [],
        "score": found.score,
    }


def as_text(event: Event) -> str:
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
