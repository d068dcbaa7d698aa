"""The two ways a call can go wrong that a user can do something about."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class InputError(ValueError):
    """What was given is wrong: an option, a config, the content of a file. Exit status 2.

    `options` are the parameters that would mend it. The command line shows them as its flags.
    """

    def __init__(self, message: str, *, options: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.options = tuple(options)


class RunError(RuntimeError):
    """The call was right, but the work could not be done. Exit status 1."""


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Say in each error which file it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}", options=error.options) from error
