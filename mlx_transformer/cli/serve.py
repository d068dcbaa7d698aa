"""`mlx-transformer serve`: a translation page and an API on this machine."""

import argparse
import ipaddress
import re
import sys
import warnings
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_transformer.cli.opening import model_directory
from mlx_transformer.cli.output import note, show, tell
from mlx_transformer.errors import InputError
from mlx_transformer.storage import shipped_models

if TYPE_CHECKING:
    from socket import socket

    from mlx_transformer.serve.catalog import Catalog
    from mlx_transformer.serve.engine import Engine
    from mlx_transformer.serve.guard import Guard, Log
    from mlx_transformer.serve.limits import Limits
    from mlx_transformer.serve.metrics import Metrics

Model = tuple[Path, tuple[str, str]]  # a directory, and from which language to which

NEEDED = ("fastapi", "uvicorn", "python_multipart", "py3langid")
EPILOG = """\
examples:
  mlx-transformer serve --open
  mlx-transformer serve --model weights/en-de --model weights/de-en --port 8080
  curl -d q="Good morning." -d source=en -d target=de http://127.0.0.1:5050/translate

The API is LibreTranslate's: programs that speak it need only the address.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Open a translation page and LibreTranslate's API on this machine. Nothing leaves it."
    )
    parser.epilog = EPILOG
    parser.add_argument(
        "--model",
        metavar="[FROM-TO=]MODEL",
        action="append",
        default=[],
        help="a model by directory, checkpoint or hub name; may be repeated (default: those that "
        "ship)",
    )
    parser.add_argument("--port", type=int, default=5050, metavar="N", help="default 5050")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    add_access_flags(parser)
    add_limit_flags(parser)


def add_access_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("who may use it").add_argument
    add("--host", default="127.0.0.1", help="listen there (default 127.0.0.1: this machine only)")
    add("--api-key", metavar="KEY", help="answer only who knows this key")
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name of this machine that clients may use; may be repeated",
    )
    add(
        "--allow-origin",
        metavar="URL",
        action="append",
        default=[],
        help="answer pages from there too (CORS); may be repeated",
    )
    add(
        "--log",
        choices=("requests", "text"),
        help="tell every request on stderr, without or with its text (default: neither)",
    )


def add_limit_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits of a request").add_argument
    add("--char-limit", type=positive, metavar="N", help="characters (default 50,000)")
    add("--batch-limit", type=positive, metavar="N", help="texts in one list (default 256)")
    add("--time-limit", type=positive, metavar="SECONDS", help="default 60")
    add("--queue-limit", type=positive, metavar="N", help="sentences that wait (default 4,096)")
    add("--rate-limit", type=positive, metavar="N", help="requests a minute and address")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def run(args: argparse.Namespace) -> None:
    if any(find_spec(name) is None for name in NEEDED):
        raise InputError("serve needs more packages: pip install 'mlx-transformer[serve]'")
    from mlx_transformer.serve.engine import Engine
    from mlx_transformer.serve.metrics import Metrics
    from mlx_transformer.serve.server import listen

    limits, metrics = limits_of(args), Metrics()
    models = models_of(args.model)
    sock = listen(args.host, args.port)
    warnings.simplefilter("ignore")  # they quote the text
    engine = Engine(metrics, limits.queue)
    try:
        answer(args, sock, application(args, engine, load_all(engine, models), limits, metrics))
    finally:
        engine.close()


def limits_of(args: argparse.Namespace) -> "Limits":
    from mlx_transformer.serve.limits import Limits

    given = {
        "characters": args.char_limit,
        "texts": args.batch_limit,
        "seconds": args.time_limit,
        "queue": args.queue_limit,
        "rate": args.rate_limit,
    }
    return Limits(**{name: value for name, value in given.items() if value is not None})


def models_of(given: list[str]) -> list[Model]:
    """Directories and their languages, from `MODEL` or `en-de=MODEL`"""
    from mlx_transformer.serve.catalog import languages_of

    names = given or [str(path) for path in shipped_models()]
    if not names:
        raise InputError("no model ships with this installation: name one", options=["model"])
    found: list[Model] = []
    for each in names:
        named = re.fullmatch(r"([a-z]{2,3})-([a-z]{2,3})=(.+)", each)
        model = Path(named[3] if named else each)
        directory = model_directory(model)
        languages = (named[1], named[2]) if named else languages_of(directory, model)
        found.append((directory, languages))
    return found


def load_all(engine: "Engine", models: list[Model]) -> "Catalog":
    """By the engine's thread: MLX arrays belong to the thread that makes them."""
    from mlx_transformer.decoding.translator import load
    from mlx_transformer.serve.catalog import Catalog, ServedModel

    def load_leg(path: Path, source: str, target: str) -> ServedModel:
        translator = load(path)
        tags = translator.tokenizer.tags
        told = translator.between(  # a model of one language is not told which
            source if len(tags.sources) > 1 else None, target if len(tags.targets) > 1 else None
        )
        return ServedModel(told, source, target)

    legs = engine.call(lambda: [load_leg(path, *languages) for path, languages in models])
    return Catalog(legs.result())


def application(
    args: argparse.Namespace,
    engine: "Engine",
    catalog: "Catalog",
    limits: "Limits",
    metrics: "Metrics",
) -> "Guard":
    from mlx_transformer.serve.api import make_app
    from mlx_transformer.serve.detect import Detector
    from mlx_transformer.serve.guard import Guard
    from mlx_transformer.serve.service import Service

    service = Service(catalog, engine, Detector(catalog.by_use), limits)
    return Guard(
        make_app(service, metrics, args.api_key, args.allow_origin),
        limits=limits,
        metrics=metrics,
        hosts=args.allow_host,
        origins=args.allow_origin,
        is_local=is_loopback(args.host),
        complain=tell,
        log=logger(args.log),
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# api_key, each letter as it is, as forms may write it (%5F) or as JSON may (\u005f).
_NAME = "".join(rf"(?:{c}|%{ord(c):02x}|\\u00{ord(c):02x})" for c in "api_key")
# The value of it, in JSON, in a form, and in a form of several parts.
_KEY = re.compile(
    (
        rf"""("{_NAME}"\s*:\s*)(?:"(?:[^"\\]|\\.)*"?|[^",}}]*)"""
        rf"""|((?<!\w){_NAME}=)[^&]*"""
        rf"""|(name="?{_NAME}"?.{{0,300}}?\r\n\r\n).*?(?=\r\n--|\Z)"""
    ).encode(),
    re.DOTALL | re.IGNORECASE,
)


def logger(what: str | None) -> "Log | None":
    if what is None:
        return None

    def log(line: str, body: bytes) -> None:
        body = _KEY.sub(rb"\1\2\3...", body)
        text = f" {body.decode('utf-8', 'replace')!r}" if what == "text" and body else ""
        note(line + text)

    return log


def answer(args: argparse.Namespace, sock: "socket", app: "Guard") -> None:
    from mlx_transformer.serve.server import address_of, run_server

    address = address_of(sock)

    def ready() -> None:
        show(f"{address}  (Ctrl-C stops)")
        sys.stdout.flush()
        if args.open:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # how it is meant to be stopped
        run_server(app, sock, patience=limits_of(args).seconds, ready=ready)
