"""What stands around a text when a model reads or writes it."""

from collections.abc import Sequence
from dataclasses import dataclass

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """Ids around the pieces of a source, and the ids that every target begins with.

    `after` None is the end of sentence of the model's config: the common case.
    """

    before: Ids = ()
    after: Ids | None = None
    start: Ids = ()

    def source(self, pieces: Sequence[int], eos_id: int) -> list[int]:
        """The whole source, as the model reads it."""
        return [*self.before, *pieces, *self.ending(eos_id)]

    def target(self, pieces: Sequence[int], eos_id: int) -> list[int]:
        """The whole target, as the model writes it."""
        return [*self.start, *pieces, eos_id]

    def ending(self, eos_id: int) -> Ids:
        return (eos_id,) if self.after is None else self.after


PLAIN = Frame()
