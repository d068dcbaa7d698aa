"""The prompt of `translate`: type a text, see its translation grow."""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlx_transformer.cli.attention_map import attention_map
from mlx_transformer.cli.opening import (
    find_translator,
    load_translator,
    open_named,
    reverse_model,
)
from mlx_transformer.cli.output import show
from mlx_transformer.cli.prompt import Command, TextPrompt
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.pivot import Pivot
from mlx_transformer.decoding.sentences import split_sentences
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.languages import language_name

HELP = """\
:model MODEL      load another model: a directory or a hub name (now {model})
:from LANGUAGE    of the text: of this model, or of another     (now {source})
:to LANGUAGE      to translate into, by two models if need be   (now {target})
:languages        which ones the model knows
:reverse          the other direction: of the languages, or the model beside this one
:attention        what the last sentence attended to
:attention FILE   the same of the whole text, as a picture (.png .svg .html)
:score [TEXT]     how probable TEXT, or else what was written, is as a translation of the last text
"""


class Repl(TextPrompt):
    HISTORY = "history"
    OWN_HELP = HELP

    def __init__(self, args: argparse.Namespace, options: Callable[[SearchOptions], SearchOptions]):
        """`options` are the user's wishes, put over a model's own options."""
        model, translator = open_named(args, checked=False)
        super().__init__(options(translator.defaults))
        self._dtype = args.dtype
        self._options_over = options
        self._last = ""  # the text that was translated last
        self._written = ""  # its translation
        self._model, self._translator = model, translator

    def _take(self, model: Path | None, translator: Translator | Pivot) -> None:
        """A model, or two in a row; if its options cannot be, the one before stays."""
        options = self._options_over(translator.defaults)
        self._options = replace(options, **self._changes)
        self._model, self._translator = model, translator

    @property
    def _greeting(self) -> str:
        return f"{self._title}: type a text, or :help. Ctrl-D leaves."

    @property
    def _title(self) -> str:
        return self._model.resolve().name if self._model else self._direction

    @property
    def _direction(self) -> str:
        return " to ".join(language or "-" for language in direction(self._translator))

    @property
    def _one(self) -> Translator:
        """The model, for what two in a row cannot do"""
        if isinstance(self._translator, Pivot):
            raise InputError("these are two models in a row: :model takes one of them")
        return self._translator

    def _write(self, text: str) -> int:
        self._last = text.strip()
        if self._options.nbest > 1:
            found = self._translator.translate(self._last, self._options)
            for each in [found, *found.alternatives]:
                show(f"{each.score:8.3f}  {each.text}")
            self._written = found.text
        else:
            self._written = ""
            for piece in self._translator.stream(self._last, self._options):
                show(piece, end="")
                self._written += piece
            show("")
        writer = self._translator
        writer = writer.second if isinstance(writer, Pivot) else writer
        return len(writer.tokenizer.encode_target(self._written))

    def _commands(self) -> dict[str, Command]:
        return super()._commands() | {
            ":model": self._set_model,
            ":from": lambda value: self._set_languages(value or None, self._languages[1]),
            ":to": lambda value: self._set_languages(self._languages[0], value or None),
            ":languages": lambda _: self._show_languages(),
            ":reverse": lambda _: self._reverse(),
            ":attention": self._attention,
            ":score": self._score,
        }

    def _now(self) -> dict[str, object]:
        source, target = (language or "-" for language in self._languages)
        named = {"model": self._model or self._title, "source": source, "target": target}
        return super()._now() | named

    def _set_model(self, directory: str) -> None:
        if not directory:
            raise InputError("name a model, as in :model weights/en-de")
        model = Path(directory).expanduser()
        self._take(model, load_translator(model, self._dtype))
        show(self._model)

    @property
    def _languages(self) -> tuple[str | None, str | None]:
        if isinstance(self._translator, Pivot):
            return direction(self._translator)
        tokenizer = self._translator.tokenizer
        return tokenizer.source_language, tokenizer.target_language

    def _set_languages(self, source: str | None, target: str | None) -> None:
        """Of the model, if it knows them; else of what this machine has for them"""
        known = direction(self._translator)
        pair = source or known[0], target or known[1]
        if isinstance(self._translator, Pivot):
            self._take(*find_translator(*pair, self._dtype))
        else:
            try:
                self._take(self._model, self._translator.between(source, target))
            except InputError:
                if not all(known):  # a model of several languages
                    raise
                self._take(*find_translator(*pair, self._dtype))
        show(self._direction)

    def _show_languages(self) -> None:
        tags = self._one.tokenizer.tags
        if not tags.targets:
            raise InputError("the model does not say its languages")
        for word, codes in (("from", tags.sources), ("to", tags.targets)):
            named = [f"{code} {language_name(code)}" for code in codes]
            if named:
                show(f"{word}: {', '.join(named)}")

    def _reverse(self) -> None:
        source, target = self._languages
        if source is not None or target is not None:
            self._set_languages(target, source)
        elif self._model:
            self._set_model(str(reverse_model(self._model)))

    def _attention(self, file: str) -> None:
        if not self._last:
            raise InputError("translate something first")
        if file:
            from mlx_transformer.cli.attention import attend, draw
            from mlx_transformer.pictures.attention import View

            attention = attend(self._one, self._last, self._options)
            draw(attention, Path(file).expanduser(), View())
            show(file)
        else:
            *others, last = split_sentences(self._last)
            found = self._one.translate(last, self._options, attention=True)
            show(attention_map(found, shutil.get_terminal_size().columns))
            if others:
                show(f"(the last of {len(others) + 1} sentences; :attention FILE draws them all)")

    def _score(self, target: str) -> None:
        if not self._last:
            raise InputError("translate a text first, then :score another translation of it")
        (score,) = self._one.score([self._last], [target or self._written])
        show(f"log-probability {score.logp:.3f}, perplexity {score.perplexity:.3f}")


def direction(translator: Translator | Pivot) -> tuple[str | None, str | None]:
    """The languages it translates between: those chosen, or the only ones it knows"""
    if isinstance(translator, Pivot):
        return direction(translator.first)[0], direction(translator.second)[1]
    tokenizer, tags = translator.tokenizer, translator.tokenizer.tags
    source = tokenizer.source_language or (tags.sources[0] if len(tags.sources) == 1 else None)
    target = tokenizer.target_language or (tags.targets[0] if len(tags.targets) == 1 else None)
    return source, target
