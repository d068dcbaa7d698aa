"""A prompt: type a text, see what a model writes. Lines with a leading colon are commands.

Here is what all prompts have, which is a search and its options; `repl.py` and `complete_repl.py`
have what is done with a text.
"""

import os
import time
from abc import ABC, abstractmethod
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

from mlx_transformer.cli.output import show
from mlx_transformer.cli.searching import notes
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.inputs.checks import nearest
from mlx_transformer.inputs.printable import printable

HELP = """\
:help             this list
:beam N           width of the beam; 1 is greedy                (now {beam})
:alpha A          length penalty                                (now {alpha})
:nbest N          show so many texts, the best first            (now {nbest})
:sample [T]       draw words instead of searching, or stop that (now {sample})
:temperature T    below 1 bolder guesses are rarer              (now {temperature})
:top-k K          draw among the K most probable words          (now {top_k})
:top-p P          draw among the top P of probability           (now {top_p})
"""
LAST_HELP = """\
:time             show time and speed of every text             (now {time})
:quit             leave, as do :q and Ctrl-D

Ctrl-C stops a text. One that begins with a colon: put a space before it."""

LEAVE = (":quit", ":q", ":exit")
TAKE_PATHS = (":model", ":attention")
Command = Callable[[str], None]
# What a switch becomes; without a word it is turned.
SWITCH: dict[str, Callable[[bool], bool]] = {
    "": lambda now: not now,
    "on": lambda _: True,
    "off": lambda _: False,
}


class TextPrompt(ABC):
    HISTORY: str  # the file that keeps what was typed, from one session to the next
    OWN_HELP = ""

    def __init__(self, options: SearchOptions) -> None:
        self._options = options
        self._changes: dict[str, Any] = {}  # of the options, made at the prompt
        self._beam_before: int | None = None  # a long list of texts widened it
        self._timed = False
        self._drawn = False  # some text, so that the next draw is another

    @property
    @abstractmethod
    def _greeting(self) -> str: ...

    @abstractmethod
    def _write(self, text: str) -> int:
        """Do what the prompt is for, with the options; returns how many tokens were written."""

    def run(self) -> None:
        session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history_file(self.HISTORY))),
            completer=CommandCompleter(list(self._commands())),
            complete_while_typing=False,
        )
        show(self._greeting)
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

    def _answer(self, line: str) -> None:
        """Whatever goes wrong is one sentence, and the prompt comes back."""
        try:
            with notes():
                if line.startswith(":"):
                    self._command(line)
                elif line.strip():
                    self._text(line)
        except KeyboardInterrupt:
            show("\n(stopped)")
        except (InputError, RunError) as error:
            show(printable(str(error)))
        except OSError as error:
            show(printable(f"{error.strerror}: {error.filename}"))

    def _text(self, text: str) -> None:
        start = time.perf_counter()
        if self._drawn and self._options.sample:
            self._options = replace(self._options, seed=self._options.seed + 1)
        self._drawn = True
        tokens = self._write(text)
        if self._timed:
            seconds = time.perf_counter() - start
            show(f"{tokens} tokens, {seconds * 1000:.0f} ms, {tokens / seconds:.0f} tokens/s")

    def _commands(self) -> dict[str, Command]:
        return {
            ":help": lambda _: self._help(),
            ":beam": lambda value: self._set_beam(number(int, value, ":beam 8")),
            ":alpha": lambda value: self._set(alpha=number(float, value, ":alpha 0.6")),
            ":nbest": lambda value: self._set_nbest(number(int, value, ":nbest 3")),
            ":sample": self._set_sample,
            ":temperature": lambda value: self._draw(
                temperature=number(float, value, ":temperature 0.7")
            ),
            ":top-k": lambda value: self._draw(top_k=number(int, value, ":top-k 10")),
            ":top-p": lambda value: self._draw(top_p=number(float, value, ":top-p 0.9")),
            ":time": self._set_time,
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

    def _help(self) -> None:
        show((HELP + self.OWN_HELP + LAST_HELP).format(**self._now()))

    def _now(self) -> dict[str, object]:
        """What the list of commands says to be set"""
        now = self._options
        return {
            "beam": now.beam,
            "alpha": now.alpha,
            "nbest": now.nbest,
            "sample": on_off(now.sample),
            "temperature": now.temperature,
            "top_k": "all" if now.top_k is None else now.top_k,
            "top_p": now.top_p,
            "time": on_off(self._timed),
        }

    def _set(self, **changes: float) -> None:
        self._options = replace(self._options, **changes)  # type: ignore[arg-type]
        self._changes |= changes
        named = {name.replace("_", "-"): on_off(value) for name, value in changes.items()}
        show(", ".join(f"{name} {value}" for name, value in named.items()))

    def _set_beam(self, width: int) -> None:
        self._set(beam=width)
        self._beam_before = None

    def _set_nbest(self, count: int) -> None:
        """A longer list needs a beam as wide; a shorter one gets back the beam there was."""
        before = self._beam_before or self._options.beam
        self._set(nbest=count, beam=max(before, count))
        self._beam_before = before

    def _draw(self, **changes: float) -> None:
        """Set an option that only sampling has; this turns sampling on."""
        self._set(sample=True, **changes)

    def _set_sample(self, temperature: str) -> None:
        if temperature in SWITCH:
            self._set(sample=SWITCH[temperature](self._options.sample))
        else:
            self._draw(temperature=number(float, temperature, ":sample 0.7"))

    def _set_time(self, wanted: str) -> None:
        if wanted not in SWITCH:
            raise InputError("say :time on or :time off")
        self._timed = SWITCH[wanted](self._timed)
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


Number = TypeVar("Number", int, float)


def number(kind: type[Number], value: str, example: str) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"give a number, as in {example}") from None


def on_off(value: object) -> object:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def history_file(name: str) -> Path:
    """Where typed lines are kept from one session to the next"""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "mlx-transformer" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
