"""The parameters of a request, from JSON or a form, checked one by one as LibreTranslate does."""

import hmac
import json
import re
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mlx_transformer.serve.guard import RefusedError
from mlx_transformer.serve.limits import Limits

AUTO = "auto"
FORMATS = ("text", "html")


class Parameters:
    """Named values; a wrong one is answered with status 400 and what is wrong."""

    def __init__(self, values: dict[str, Any], limits: Limits) -> None:
        self._values, self._limits = values, limits

    def check_key(self, key: str | None) -> None:
        given = self.text("api_key") or ""
        if key is None:
            return
        if not given:
            raise RefusedError(403, "Please contact the server operator to get an API key")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise RefusedError(403, "Invalid API key")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(f"{name} parameter is not a string")
        return None if value is None else well_formed(value)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise invalid(f"missing {name} parameter")
        self._check_size(value)
        return value

    def texts(self) -> "Texts":
        """q, a text or a list of texts"""
        q = self._values.get("q")
        if not isinstance(q, list):
            return Texts([self.required("q")], is_list=False)
        if not q:
            raise invalid("missing q parameter")
        if not all(isinstance(each, str) for each in q):
            raise invalid("q parameter is not a string or a list of strings")
        if len(q) > self._limits.texts:
            raise invalid(f"request ({len(q)}) exceeds text limit ({self._limits.texts})")
        self._check_size("".join(q))
        return Texts([well_formed(each) for each in q], is_list=True)

    def format(self) -> str:
        value = self.text("format") or "text"
        if value not in FORMATS:
            raise RefusedError(400, f"{value} format is not supported")
        return value

    def alternatives(self) -> int:
        value, most = self._values.get("alternatives"), self._limits.alternatives
        if value is None:
            return 0
        is_number = type(value) is int or (isinstance(value, float) and value.is_integer())
        if not is_number and not (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value)):
            raise invalid("alternatives parameter is not a number")
        if int(value) > most:
            raise invalid(f"alternatives parameter must be <= {most}")
        return max(0, int(value))

    def _check_size(self, text: str) -> None:
        if len(text) > self._limits.characters:
            raise invalid(f"request ({len(text)}) exceeds text limit ({self._limits.characters})")


@dataclass(frozen=True)
class Texts:
    """What `q` held; the answer has the same form."""

    texts: list[str]
    is_list: bool


def invalid(what: str) -> RefusedError:
    return RefusedError(400, f"Invalid request: {what}")


def well_formed(text: str) -> str:
    """Without the halves of characters that JSON can spell and UTF-8 cannot"""
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


async def read_parameters(request: Request, limits: Limits) -> Parameters:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return Parameters(from_json(await request.body()), limits)
    try:
        async with request.form(max_files=0, max_fields=50, max_part_size=limits.body) as form:
            return Parameters({**request.query_params, **form}, limits)
    except (HTTPException, UnicodeError, LookupError):
        raise invalid("the form cannot be read") from None


def from_json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise RefusedError(400, "Invalid JSON format") from None
    if not isinstance(values, dict):
        raise RefusedError(400, "Invalid JSON format")
    return values
