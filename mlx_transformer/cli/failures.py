"""Errors as the one sentence that the command line says."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from mlx_transformer.errors import InputError


def sentence(error: Exception, verb: ModuleType) -> str:
    """What went wrong, and the flags of `verb` that would mend it."""
    if isinstance(error, InputError):
        return f"{error}{_see(error, verb)}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error) or type(error).__name__


@contextmanager
def naming_output(name: str) -> Iterator[None]:
    """A write that fails, as on a full disk, does not say by itself where it was going."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or name
        raise


def _see(error: InputError, verb: ModuleType) -> str:
    """A flag is named as its parameter, or as the verb's `FLAGS` say."""
    special = getattr(verb, "FLAGS", {})
    flags = [special.get(name, "--" + name.replace("_", "-")) for name in error.options]
    return f" (see {' and '.join(flags)})" if flags else ""
