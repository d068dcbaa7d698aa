"""The OpenAPI description: what each route takes, and everything it may answer."""

from typing import Any

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
        pair = {
            "source": {"type": "string", "enum": [AUTO, *catalog.sources]},
            "target": {"type": "string", "enum": catalog.targets(catalog.first.source)},
        }
        first = catalog.first.source
        direct = {
            "enum": [t for t in catalog.targets(first) if len(catalog.route(first, t) or []) == 1]
        }
        key = {"api_key": OPTIONAL_TEXT}
        number = {"anyOf": [{"type": "integer", "maximum": limits.alternatives}, {"type": "null"}]}
        form = {"enum": ["text", "html", "", None]}
        translation = {"q": {"anyOf": [one_text, texts]}, **pair, "format": form}
        self.translate = _post(
            "Translate text or HTML",
            translation | {"alternatives": number} | key,
            ("q", "source", "target"),
            _json(_translated()),
        )
        self.stream = _post(
            "Translate text, told as server-sent events: start, piece, sentence, done or error",
            {"q": one_text, **pair, **key},
            ("q", "source", "target"),
            {"text/event-stream": {"schema": {}}},
        )
        self.attention = _post(
            "What the model attends to while it writes a translation, its own or a given one",
            {
                "q": one_text,
                **pair,
                "target": direct,
                "translation": OPTIONAL_TEXT,
                "format": form,
                **key,
            },
            ("q", "source", "target"),
            _json({"type": "object"}) | {"text/html": {"schema": TEXT}},
        )
        self.detect = _post(
            "Detect the language of a text",
            {"q": {"anyOf": [one_text, texts]}, **key},
            ("q",),
            _json({"type": "array", "items": DETECTED}),
        )
        self.languages = _get("The languages there are", _json(_languages()))
        self.health = _get("Whether the server is well", _json({"type": "object"}))
        self.settings = _get("What a front end needs to know", _json({"type": "object"}))
        self.metrics = _get("Counters for Prometheus", {"text/plain": {"schema": TEXT}})


def _post(
    summary: str, properties: dict[str, Any], required: tuple[str, ...], answer: dict[str, Any]
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    body = {"required": True, "content": {kind: {"schema": schema} for kind in kinds[:1]}}
    return {
        "summary": summary,
        "openapi_extra": {"requestBody": body},
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
