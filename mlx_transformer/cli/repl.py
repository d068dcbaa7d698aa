"""The prompt: type a text, see its translation grow. Lines with a leading colon are commands."""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
    WordCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from mlx_transformer.cli.attention_map import attention_map
from mlx_transformer.cli.opening import (
    find_translator,
    load_translator,
    open_named,
    reverse_model,
)
from mlx_transformer.cli.output import show
from mlx_transformer.cli.searching import notes
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.pivot import Pivot
from mlx_transformer.decoding.sentences import split_sentences
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.inputs.checks import nearest
from mlx_transformer.inputs.printable import printable
from mlx_transformer.tokenizer.languages import language_name

HELP = """\
:help             this list
:beam N           width of the beam; 1 is greedy                (now {beam})
:alpha A          length penalty                                (now {alpha})
:nbest N          show so many translations                     (now {nbest})
:sample [T]       draw words instead of searching, or stop that (now {sample})
:temperature T    below 1 bolder guesses are rarer              (now {temperature})
:top-k K          draw among the K most probable words          (now {top_k})
:top-p P          draw among the top P of probability           (now {top_p})
:model MODEL      load another model: a directory or a hub name (now {model})
:from LANGUAGE    of the text: of this model, or of another     (now {source})
:to LANGUAGE      to translate into, by two models if need be   (now {target})
:languages        which ones the model knows
:reverse          the other direction: of the languages, or the model beside this one
:attention        what the last sentence attended to
:attention FILE   the same of the whole text, as a picture (.png .svg .html)
:score [TEXT]     how probable TEXT, or else what was written, is as a translation of the last text
:time             show time and speed of every translation      (now {time})
:quit             leave, as do :q and Ctrl-D

Ctrl-C stops a translation. A text that begins with a colon: put a space before it."""


LEAVE = (":quit", ":q", ":exit")
TAKE_PATHS = (":model", ":attention")


class Repl:
    def __init__(self, args: argparse.Namespace, options: Callable[[SearchOptions], SearchOptions]):
        """`options` are the user's wishes, put over a model's own options."""
        self._dtype = args.dtype
        self._options_over = options
        self._changes: dict[str, Any] = {}  # made at the prompt
        self._timed = False
        self._text = ""  # the last that was translated
        self._written = ""  # its translation
        self._take(*open_named(args, checked=False))

    def _take(self, model: Path | None, translator: Translator | Pivot) -> None:
        """A model, or two in a row; if its options cannot be, the one before stays."""
        options = self._options_over(translator.defaults)
        self._options = replace(options, **self._changes)
        self._model, self._translator = model, translator

    def run(self) -> None:
        session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history_file())),
            completer=CommandCompleter(list(self._commands())),
            complete_while_typing=False,
        )
        show(f"{self._title}: type a text, or :help. Ctrl-D leaves.")
        while True:
            try:
                line = session.prompt("> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if line.strip() in LEAVE:
                return
            self._answer(line)

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

    def _answer(self, line: str) -> None:
        """Whatever goes wrong is one sentence, and the prompt comes back."""
        try:
            with notes():
                if line.startswith(":"):
                    self._command(line)
                elif line.strip():
                    self._translate(line.strip())
        except KeyboardInterrupt:
            show("\n(stopped)")
        except (InputError, RunError) as error:
            show(printable(str(error)))
        except OSError as error:
            show(printable(f"{error.strerror}: {error.filename}"))

    def _translate(self, text: str) -> None:
        start = time.perf_counter()
        if self._text and self._options.sample:
            self._options = replace(self._options, seed=self._options.seed + 1)  # draw anew
        self._text = text
        if self._options.nbest > 1:
            found = self._translator.translate(text, self._options)
            for each in [found, *found.alternatives]:
                show(f"{each.score:8.3f}  {each.text}")
            self._written = found.text
        else:
            self._written = ""
            for piece in self._translator.stream(text, self._options):
                show(piece, end="")
                self._written += piece
            show("")
        if self._timed:
            self._show_time(time.perf_counter() - start)

    def _show_time(self, seconds: float) -> None:
        writer = self._translator
        writer = writer.second if isinstance(writer, Pivot) else writer
        tokens = len(writer.tokenizer.encode_target(self._written))
        show(f"{tokens} tokens, {seconds * 1000:.0f} ms, {tokens / seconds:.0f} tokens/s")

    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            ":help": self._help,
            ":beam": lambda value: self._set(beam=number(int, value, ":beam 8")),
            ":alpha": lambda value: self._set(alpha=number(float, value, ":alpha 0.6")),
            ":nbest": lambda value: self._set_nbest(number(int, value, ":nbest 3")),
            ":sample": self._set_sample,
            ":temperature": lambda value: self._draw(
                temperature=number(float, value, ":temperature 0.7")
            ),
            ":top-k": lambda value: self._draw(top_k=number(int, value, ":top-k 10")),
            ":top-p": lambda value: self._draw(top_p=number(float, value, ":top-p 0.9")),
            ":model": self._set_model,
            ":from": lambda value: self._set_languages(value or None, self._languages[1]),
            ":to": lambda value: self._set_languages(self._languages[0], value or None),
            ":languages": lambda _: self._show_languages(),
            ":reverse": lambda _: self._reverse(),
            ":attention": self._attention,
            ":score": self._score,
            ":time": lambda _: self._toggle_time(),
        }

    def _command(self, line: str) -> None:
        name, _, value = line.partition(" ")
        commands = self._commands()
        if name not in commands:
            raise InputError(
                f"there is no command {name}{nearest(name, list(commands))} (:help lists them; "
                "a text that begins with a colon needs a space before it)"
            )
        commands[name](value.strip())

    def _help(self, _: str) -> None:
        now = self._options
        show(
            HELP.format(
                beam=now.beam,
                alpha=now.alpha,
                nbest=now.nbest,
                sample=on_off(now.sample),
                temperature=now.temperature,
                top_k="all" if now.top_k is None else now.top_k,
                top_p=now.top_p,
                model=self._model or self._title,
                source=self._languages[0] or "-",
                target=self._languages[1] or "-",
                time=on_off(self._timed),
            )
        )

    def _set(self, **changes: float) -> None:
        self._options = replace(self._options, **changes)  # type: ignore[arg-type]
        self._changes |= changes
        named = {name.replace("_", "-"): on_off(value) for name, value in changes.items()}
        show(", ".join(f"{name} {value}" for name, value in named.items()))

    def _draw(self, **changes: float) -> None:
        """Set an option that only sampling has; this turns sampling on."""
        self._set(sample=True, **changes)

    def _set_sample(self, temperature: str) -> None:
        if temperature in ("", "on", "off"):
            self._set(sample=temperature == "on" if temperature else not self._options.sample)
        else:
            self._draw(temperature=number(float, temperature, ":sample 0.7"))

    def _set_nbest(self, count: int) -> None:
        """A longer list needs a beam as wide."""
        self._set(nbest=count, beam=max(self._options.beam, count))

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
        if not self._text:
            raise InputError("translate something first")
        if file:
            from mlx_transformer.cli.attention import attend, draw
            from mlx_transformer.pictures.attention import View

            attention = attend(self._one, self._text, self._options)
            draw(attention, Path(file).expanduser(), View())
            show(file)
        else:
            *others, last = split_sentences(self._text)
            found = self._one.translate(last, self._options, attention=True)
            show(attention_map(found, shutil.get_terminal_size().columns))
            if others:
                show(f"(the last of {len(others) + 1} sentences; :attention FILE draws them all)")

    def _score(self, target: str) -> None:
        if not self._text:
            raise InputError("translate a text first, then :score another translation of it")
        (score,) = self._one.score([self._text], [target or self._written])
        show(f"log-probability {score.logp:.3f}, perplexity {score.perplexity:.3f}")

    def _toggle_time(self) -> None:
        self._timed = not self._timed
        show(f"time {on_off(self._timed)}")


class CommandCompleter(Completer):
    """Completes commands, and paths behind those that take one."""

    def __init__(self, commands: list[str]) -> None:
        self._commands = WordCompleter(commands, sentence=True)
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        command, space, path = document.text_before_cursor.partition(" ")
        if not space:
            yield from self._commands.get_completions(document, event)
        elif command in TAKE_PATHS:
            yield from self._paths.get_completions(Document(path), event)


def direction(translator: Translator | Pivot) -> tuple[str | None, str | None]:
    """The languages it translates between: those chosen, or the only ones it knows"""
    if isinstance(translator, Pivot):
        return direction(translator.first)[0], direction(translator.second)[1]
    tokenizer, tags = translator.tokenizer, translator.tokenizer.tags
    source = tokenizer.source_language or (tags.sources[0] if len(tags.sources) == 1 else None)
    target = tokenizer.target_language or (tags.targets[0] if len(tags.targets) == 1 else None)
    return source, target


Number = TypeVar("Number", int, float)


def number(kind: type[Number], value: str, example: str) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"give a number, as in {example}") from None


def on_off(value: object) -> object:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def history_file() -> Path:
    """Where typed lines are kept from one session to the next"""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "mlx-transformer" / "history"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
