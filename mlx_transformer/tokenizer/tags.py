"""What stands around a text as a model reads or writes it; so models are told their languages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from mlx_transformer.errors import InputError

FrameIds = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """FrameIds around the pieces of a source, and the ids that every target begins with.

    `after` None is the end of sentence of the model's config: the common case.
    """

    before: FrameIds = ()
    after: FrameIds | None = None
    start: FrameIds = ()

    @classmethod
    def said(cls, settings: Mapping[str, Any]) -> "Frame":
        """As tokenizer_config.json has it: {"frame": {"before": [1], "after": [], "start": []}}"""
        frame = settings.get("frame", {})
        sides = {each.name for each in fields(cls)}
        if (
            not isinstance(frame, dict)
            or not sides >= frame.keys()
            or not all(isinstance(ids, list) for ids in frame.values())
            or not all(type(i) is int and i >= 0 for ids in frame.values() for i in ids)
        ):
            raise InputError(
                "frame in tokenizer_config.json must be lists of ids under before, after or start"
            )
        return cls(**{side: tuple(ids) for side, ids in frame.items()})

    def source(self, pieces: Sequence[int], eos_id: int) -> list[int]:
        """The whole source, as the model reads it."""
        return [*self.before, *pieces, *((eos_id,) if self.after is None else self.after)]

    def target(self, pieces: Sequence[int], eos_id: int) -> list[int]:
        """The whole target, as the model writes it."""
        return [*self.start, *pieces, eos_id]


PLAIN = Frame()


class Tags(Protocol):
    """`sources` and `targets` are the codes a model knows; none: it is not told any."""

    @property
    def sources(self) -> Sequence[str]: ...

    @property
    def targets(self) -> Sequence[str]: ...

    @property
    def optional(self) -> bool:
        """Whether the model also reads a text without any language."""
        ...

    def frame(self, source: str | None, target: str | None) -> Frame:
        """What stands around a text of these languages; a missing one that is needed is said."""
        ...

    @property
    def spelled(self) -> Mapping[str, str]:
        """Tags that people write before a text, and the target language that each names."""
        ...


@dataclass(frozen=True)
class OneWay:
    """A model of one direction, known or not."""

    around: Frame = PLAIN
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    optional: bool = True
    spelled: Mapping[str, str] = field(default_factory=dict)

    def frame(self, source: str | None, target: str | None) -> Frame:
        return self.around


@dataclass(frozen=True)
class LanguageIds:
    """Languages are ids: the source's beside its text, the target's the first of the target."""

    codes: Mapping[str, int]
    default_source: str | None = None
    default_target: str | None = None
    after: FrameIds | None = None  # before the source's language where that stands behind the text
    optional: bool = False
    spelled: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> Sequence[str]:
        return list(self.codes)

    @property
    def targets(self) -> Sequence[str]:
        return list(self.codes)

    def frame(self, source: str | None, target: str | None) -> Frame:
        source, target = source or self.default_source, target or self.default_target
        if source is None or target is None:
            raise needed("source" if source is None else "target", self.codes)
        around: FrameIds = (self.codes[source],)
        start: FrameIds = (self.codes[target],)
        if self.after is None:
            return Frame(before=around, start=start)
        return Frame(after=self.after + around, start=start)


@dataclass(frozen=True)
class LanguageBehind:
    """As mBART-25 has it: the source's language stands behind its end, and the decoder starts from
    the target's, which the model's config holds."""

    codes: Mapping[str, int]
    end: FrameIds
    default_source: str | None = None
    target: str | None = None
    optional: bool = False
    spelled: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> Sequence[str]:
        return list(self.codes)

    @property
    def targets(self) -> Sequence[str]:
        return [] if self.target is None else [self.target]

    def frame(self, source: str | None, target: str | None) -> Frame:
        source = source or self.default_source
        if source is None:
            raise needed("source", self.codes)
        return Frame(after=(*self.end, self.codes[source]))


@dataclass(frozen=True)
class Prefixes:
    """Words before the source name the languages, or the target's alone (source None)."""

    pairs: Mapping[tuple[str | None, str], FrameIds]
    spelled: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False

    @property
    def sources(self) -> Sequence[str]:
        return list(dict.fromkeys(source for source, _ in self.pairs if source))

    @property
    def targets(self) -> Sequence[str]:
        return list(dict.fromkeys(target for _, target in self.pairs))

    def frame(self, source: str | None, target: str | None) -> Frame:
        if target is None:
            if source is None and self.optional:
                return PLAIN
            raise needed("target", self.targets)
        for (known_source, known_target), before in self.pairs.items():
            if known_target == target and (known_source is None or source in (None, known_source)):
                return Frame(before=before)
        known = ", ".join(f"{s} to {t}" for s, t in self.pairs)
        raise InputError(f"the model does not translate {source} to {target}, only {known}")


def needed(side: str, codes: Mapping[str, int] | Sequence[str]) -> InputError:
    some = ", ".join(list(codes)[:3])
    return InputError(
        f"the model knows {len(codes)} languages: name the {side} language ({some}, ...)"
    )
