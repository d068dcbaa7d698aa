"""From texts and two languages to translations: which models, through the engine, in time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from mlx_transformer.decoding.pivot import through
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.errors import InputError
from mlx_transformer.serve.catalog import Catalog, ServedModel
from mlx_transformer.serve.detect import Detector
from mlx_transformer.serve.engine import BusyError, Engine, Request, Watcher
from mlx_transformer.serve.guard import RefusedError
from mlx_transformer.serve.limits import Limits
from mlx_transformer.tokenizer.languages import language_name

AUTO = "auto"
QUICK = 2000  # characters: to split so few takes less time than to wake another thread

T = TypeVar("T")
Route = list[ServedModel]


@dataclass(frozen=True)
class Service:
    """What the routes of the API ask for."""

    catalog: Catalog
    engine: Engine
    detector: Detector
    limits: Limits

    async def detect(self, text: str) -> list[dict[str, object]]:
        """In LibreTranslate's form"""
        found = await asyncio.to_thread(self.detector.detect, text)
        return [{"language": code, "confidence": sure} for code, sure in found]

    def route(self, source: str, target: str) -> Route:
        for code in (source, target):
            if code not in self.catalog.languages:
                raise RefusedError(400, f"{code} is not supported")
        route = self.catalog.route(source, target)
        if route is None:
            names = [f"{language_name(code)} ({code})" for code in (target, source)]
            raise RefusedError(
                400, "{} is not available as a target language from {}".format(*names)
            )
        return route

    async def translate(
        self,
        route: Route,
        texts: Sequence[str],
        *,
        nbest: int = 1,
        attention: bool = False,
        watcher: Watcher | None = None,
    ) -> list[Translation]:
        """Leg by leg; the last one gives the alternatives and is what a watcher sees."""
        found = [unchanged(text) for text in texts]
        for leg in route:
            is_last = leg is route[-1]
            before, found = (
                found,
                await self._leg(
                    leg,
                    [each.text for each in found],
                    nbest=nbest if is_last else 1,
                    attention=attention,
                    watcher=watcher if is_last else None,
                ),
            )
            if leg is not route[0]:
                found = list(map(through, before, found))
        return found

    async def _leg(
        self,
        leg: ServedModel,
        texts: list[str],
        *,
        nbest: int,
        attention: bool,
        watcher: Watcher | None,
    ) -> list[Translation]:
        plan = leg.translator.plan
        if sum(map(len, texts)) <= QUICK:
            plans = [plan(text) for text in texts]
        else:
            plans = await asyncio.to_thread(lambda: [plan(text) for text in texts])
        usual = leg.translator.defaults
        options = replace(usual, beam=max(usual.beam, nbest), nbest=nbest)
        request = Request(leg.translator, plans, options, attention, watcher)
        if watcher is not None:
            watcher.began([len(line) for plan in plans for line in plan.lines])
        return await self.result(lambda: self.engine.submit(request))

    async def result(self, submit: Callable[[], "Future[T]"]) -> T:
        """What the engine makes of it; whoever stops waiting takes it out of the engine."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(submit())
        except BusyError as busy:
            wait = {"Retry-After": str(busy.seconds)}
            raise RefusedError(503, "Slowdown: the server is busy", **wait) from None
        except TimeoutError:
            raise RefusedError(
                504, f"It took longer than {self.limits.seconds:g} seconds"
            ) from None
        except InputError as error:
            raise RefusedError(400, str(error)) from None


def unchanged(text: str) -> Translation:
    """A text that is in the right language already"""
    return Translation(text, 0.0, 0.0, tokens=[], source_tokens=[], complete=True)


async def unless_gone(disconnected: Awaitable[None], work: Awaitable[T]) -> T:
    """The result of some work, which is given up if the client hangs up."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(400, "The client hung up")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
