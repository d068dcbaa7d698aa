"""The OpenAPI description: what each route takes, and everything it may answer."""

from typing import Any

from mlx_transformer.serve.catalog import ANY_ROUTE, ONE_MODEL, Catalog
from mlx_transformer.serve.service import AUTO, Service

TEXT = {"type": "string"}
OPTIONAL_TEXT = {"type": ["string", "null"]}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}
DETECTED = {
    "type": "object",
    "properties": {"language": TEXT, "confidence": {"type": "number", "maximum": 100}},
    "required": ["language", "confidence"],
}
REFUSALS = {
    400: "Something is wrong with the request",
    403: "The API key is missing or wrong, or the request is from elsewhere",
    408: "The request came too slowly",
    413: "The request is too large",
    429: "Too many requests; Retry-After says when to come back",
    500: "An error of the server",
    503: "The queue is full; Retry-After says when to come back",
    504: "It took too long",
}


class Descriptions:
    """For each route, the arguments FastAPI takes to describe it."""

    def __init__(self, service: Service) -> None:
        limits, catalog = service.limits, service.catalog
        one_text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
        texts = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": limits.texts}
        key = {"api_key": OPTIONAL_TEXT}
        number = {"anyOf": [{"type": "integer", "maximum": limits.alternatives}, {"type": "null"}]}
        form = {"enum": ["text", "html", "", None]}
        one_or_more = {"q": {"anyOf": [one_text, texts]}}
        self.translate = _post(
            "Translate text or HTML",
            _between(
                _pairs(catalog, ANY_ROUTE),
                one_or_more | {"format": form, "alternatives": number} | key,
            ),
            _json(_translated()),
        )
        self.stream = _post(
            "Translate text, told as server-sent events: start, piece, sentence, done or error",
            _between(_pairs(catalog, ANY_ROUTE), {"q": one_text} | key),
            {"text/event-stream": {"schema": {}}},
        )
        self.attention = _post(
            "What the model attends to while it writes a translation, its own or a given one",
            _between(
                _pairs(catalog, ONE_MODEL),
                {"q": one_text, "translation": OPTIONAL_TEXT, "format": form} | key,
            ),
            _json({"type": "object"}) | {"text/html": {"schema": TEXT}},
        )
        self.detect = _post(
            "Detect the language of a text",
            {"type": "object", "properties": one_or_more | key, "required": ["q"]},
            _json({"type": "array", "items": DETECTED}),
        )
        self.languages = _get("The languages there are", _json(_languages()))
        self.health = _get("Whether the server is well", _json({"type": "object"}))
        self.settings = _get("What a front end needs to know", _json({"type": "object"}))
        self.metrics = _get("Counters for Prometheus", {"text/plain": {"schema": TEXT}})


def _pairs(catalog: Catalog, legs: range) -> dict[str, list[str]]:
    """By source, the targets that can be asked for: those that so many models in a row reach."""
    targets = {source: catalog.targets(source, legs) for source in catalog.languages}
    targets[AUTO] = sorted({target for reached in targets.values() for target in reached})
    return targets


def _between(pairs: dict[str, list[str]], others: dict[str, Any]) -> dict[str, Any]:
    """A request that names two languages and has these other properties, `q` among them."""
    return {
        "type": "object",
        "properties": others | {"source": TEXT, "target": TEXT},
        "required": ["q", "source", "target"],
        "anyOf": [
            {"properties": {"source": {"const": source}, "target": {"enum": targets}}}
            for source, targets in pairs.items()
            if targets
        ],
    }


def _post(summary: str, schema: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "openapi_extra": {"requestBody": {"required": True, "content": _json(schema)}},
        "responses": _responses(answer, REFUSALS),
    }


def _get(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    refusals = {status: REFUSALS[status] for status in (403, 500)}
    return {"summary": summary, "responses": _responses(answer, refusals)}


def _responses(answer: dict[str, Any], refusals: dict[int, str]) -> dict[int, dict[str, Any]]:
    errors = {
        status: {"description": reason, "content": _json(ERROR)}
        for status, reason in refusals.items()
    }
    return {200: {"description": "Done", "content": answer}, **errors}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _translated() -> dict[str, Any]:
    one_or_more = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
    return {
        "type": "object",
        "properties": {
            "translatedText": one_or_more,
            "detectedLanguage": {"anyOf": [DETECTED, {"type": "array", "items": DETECTED}]},
            "alternatives": {"type": "array"},
        },
        "required": ["translatedText"],
    }


def _languages() -> dict[str, Any]:
    properties = {"code": TEXT, "name": TEXT, "targets": {"type": "array", "items": TEXT}}
    return {"type": "array", "items": {"type": "object", "properties": properties}}
