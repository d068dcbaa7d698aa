"""The prompt of `complete`: type how a text begins, see it go on."""

from mlx_transformer.cli.output import show
from mlx_transformer.cli.prompt import TextPrompt
from mlx_transformer.decoding.completer import Completer
from mlx_transformer.decoding.options import SearchOptions


class CompleteRepl(TextPrompt):
    HISTORY = "complete-history"

    def __init__(self, completer: Completer, options: SearchOptions) -> None:
        super().__init__(options)
        self._completer = completer

    @property
    def _greeting(self) -> str:
        return "Type how a text begins, or :help. Ctrl-C stops it, Ctrl-D leaves."

    def _write(self, text: str) -> int:
        if self._options.nbest > 1:
            found = self._completer.complete(text, self._options)
            ranked = [found, *found.alternatives]
            for each in ranked:
                show(f"{each.score:8.3f}  {text}{each.text}")
            return sum(len(each.tokens) for each in ranked)
        show(text, end="")
        written = ""
        for piece in self._completer.stream(text, self._options):
            show(piece, end="")
            written += piece
        show("")
        return len(self._completer.tokenizer.encode_source(written))
