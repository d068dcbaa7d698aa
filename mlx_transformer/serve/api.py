"""The routes: LibreTranslate's API, and beside it streaming, attention, metrics and the page."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from mlx_transformer import __version__
from mlx_transformer.decoding.translator import Translation
from mlx_transformer.pictures.attention import Attention, View
from mlx_transformer.pictures.attention_page import attention_page
from mlx_transformer.serve import attention, describe
from mlx_transformer.serve.catalog import ANY_ROUTE, ONE_MODEL, fits
from mlx_transformer.serve.guard import RefusedError
from mlx_transformer.serve.markup import Markup
from mlx_transformer.serve.metrics import Metrics
from mlx_transformer.serve.parameters import Parameters, read_parameters
from mlx_transformer.serve.service import AUTO, Route, Service, unless_gone
from mlx_transformer.serve.stream import Event, Events, as_text
from mlx_transformer.tokenizer.languages import language_name

# The page, by path
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def make_app(
    service: Service, metrics: Metrics, api_key: str | None = None, origins: Sequence[str] = ()
) -> FastAPI:
    """The application without its `Guard`."""
    app = FastAPI(title="mlx-transformer", version=__version__, docs_url=None, redoc_url=None)
    if origins:
        methods, headers = ["GET", "POST"], ["Content-Type"]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers
        )
    app.add_exception_handler(HTTPException, as_error)
    app.add_exception_handler(RefusedError, lambda _, error: error.response())
    routes, docs = Routes(service, metrics, api_key), describe.Descriptions(service)
    app.post("/translate", **docs.translate)(routes.translate)
    app.post("/stream", **docs.stream)(routes.stream)
    app.post("/attention", **docs.attention)(routes.attention)
    app.post("/detect", **docs.detect)(routes.detect)
    app.get("/languages", **docs.languages)(routes.languages)
    app.get("/health", **docs.health)(routes.health)
    app.get("/frontend/settings", **docs.settings)(routes.settings)
    app.get("/metrics", **docs.metrics)(routes.metrics)
    for path, (name, media_type) in PAGE.items():
        app.add_route(path, page_file(name, media_type))
    return app


class Routes:
    """A method a route: from a request to its answer."""

    def __init__(self, service: Service, metrics: Metrics, api_key: str | None) -> None:
        self._service, self._metrics, self._api_key = service, metrics, api_key

    async def translate(self, request: Request) -> JSONResponse:
        answer = translated(self._service, await self._parameters(request))
        return JSONResponse(await unless_gone(disconnected(request), answer))

    async def stream(self, request: Request) -> StreamingResponse:
        events = streamed(self._service, await self._parameters(request))
        first = await anext(events)  # raises what is wrong, while a status can still be sent

        async def lines() -> AsyncIterator[str]:
            yield as_text(first)
            async for event in events:
                yield as_text(event)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def attention(self, request: Request) -> Response:
        given = await self._parameters(request)
        found = await unless_gone(disconnected(request), attended(self._service, given))
        if given.format() == "text":
            return JSONResponse(attention.as_object(found))
        policy = {"Content-Security-Policy": attention.POLICY}
        return HTMLResponse(attention_page(found, View()), headers=policy)

    async def detect(self, request: Request) -> JSONResponse:
        texts = (await self._parameters(request)).texts()
        return JSONResponse(await self._service.detect("\n".join(texts.texts)))

    async def languages(self) -> JSONResponse:
        catalog = self._service.catalog
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": catalog.targets(code)}
                for code in catalog.languages
            ]
        )

    async def health(self) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def settings(self) -> JSONResponse:
        return JSONResponse(settings_of(self._service, self._api_key is not None))

    async def metrics(self) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _parameters(self, request: Request) -> Parameters:
        given = await read_parameters(request, self._service.limits)
        given.check_key(self._api_key)
        return given


def page_file(name: str, media_type: str) -> Callable[[Request], Response]:
    content = (resources.files(__package__) / "page" / name).read_bytes()
    return lambda _: Response(content, media_type=media_type)


async def as_error(_: Request, error: HTTPException) -> JSONResponse:
    """In LibreTranslate's form"""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def translated(service: Service, given: Parameters) -> dict[str, Any]:
    q, alternatives, format_ = given.texts(), given.alternatives(), given.format()
    route, detected = await routed(service, given, "\n".join(q.texts))
    nbest = alternatives + 1
    if format_ == "html":
        ranked = await translate_html(service, route, q.texts, nbest)
    else:
        translations = await service.translate(route, q.texts, nbest=nbest)
        ranked = [distinct(one.text for one in by_rank(each)) for each in translations]
    found, others = [each[0] for each in ranked], [each[1:] for each in ranked]
    answer: dict[str, Any] = {"translatedText": found if q.is_list else found[0]}
    if detected:
        answer["detectedLanguage"] = [detected] * len(found) if q.is_list else detected
    if alternatives:
        answer["alternatives"] = others if q.is_list else others[0]
    return answer


async def routed(
    service: Service, given: Parameters, text: str, legs: range = ANY_ROUTE
) -> tuple[Route, dict[str, Any] | None]:
    """The models for a request, so many in a row, and the language of its text if that was open."""
    source, target = given.required("source"), given.required("target")
    if source != AUTO:
        route = service.route(source, target)
        if not fits(route, legs):
            raise RefusedError(400, f"No single model translates from {source} to {target}")
        return route, None
    for detected in await service.detect(text):
        found = service.catalog.route(str(detected["language"]), target)
        if found is not None and fits(found, legs):
            return found, detected
    raise RefusedError(400, f"{target} is not supported")


async def translate_html(
    service: Service, route: Route, texts: list[str], nbest: int
) -> list[list[str]]:
    """The translations of each page, the best first"""
    pages = [Markup(text) for text in texts]
    parts = [part for page in pages for part in page.texts]
    found = iter(await service.translate(route, parts, nbest=nbest, attention=True))
    return [rendered(page, [by_rank(next(found)) for _ in page.texts], nbest) for page in pages]


def rendered(page: Markup, passages: list[list[Translation]], nbest: int) -> list[str]:
    """A page of every passage's best translation, one of the second best, and so on."""
    return distinct(
        page.render([ranked[min(rank, len(ranked) - 1)] for ranked in passages])
        for rank in range(nbest)
    )


def by_rank(best: Translation) -> list[Translation]:
    return [best, *best.alternatives]


def distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


async def streamed(service: Service, given: Parameters) -> AsyncIterator[Event]:
    text = given.required("q")
    route, detected = await routed(service, given, text)
    events = Events(detected, is_direct=len(route) < 2)
    if not route:
        events.began([])

    async def result() -> Event:
        [found] = await service.translate(route, [text], attention=True, watcher=events)
        return "done", {"translatedText": found.text}

    async for event in events.during(result()):
        yield event


async def attended(service: Service, given: Parameters) -> Attention:
    text, translation = given.required("q"), given.text("translation")
    [leg], _ = await routed(service, given, text, ONE_MODEL)
    if not translation:
        [found] = await service.translate([leg], [text])
        translation = found.text
    attend = partial(attention.attend, leg.translator, text, translation)
    return await service.result(lambda: service.engine.call(attend))


def settings_of(service: Service, key_required: bool) -> dict[str, Any]:
    first = service.catalog.first
    return {
        "charLimit": service.limits.characters,
        "frontendTimeout": 500,
        "apiKeys": key_required,
        "keyRequired": key_required,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": first.source, "name": language_name(first.source)},
            "target": {"code": first.target, "name": language_name(first.target)},
        },
    }
