"""What writes text token by token: the search behind a translator and a completer."""

from collections.abc import Callable, Generator
from typing import ClassVar, Literal

import mlx.core as mx

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.batch import Hypothesis, Ids, SearchBatch
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search, advance
from mlx_transformer.decoding.shortlist import Shortlist
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import Tokenizer

Half = Literal["encoder", "decoder"] | None
USES: dict[Half, str] = {
    None: "an encoder and a decoder, which translate",
    "encoder": "an encoder alone, which embeds texts and fills in words",
    "decoder": "a decoder alone, which completes and scores texts",
}


def check_halves(config: ModelConfig, wanted: Half) -> None:
    if config.alone != wanted:
        raise InputError(f"the model is {USES[config.alone]}, not {USES[wanted]}")


class Writer:
    """A model with a decoder, and its tokenizer.

    `defaults` are the options of a search that is given none. Any number of threads may share one.
    """

    alone: ClassVar[Half]  # which half the model has to be, if it is one

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        defaults: SearchOptions | None = None,
        shortlist: Shortlist | None = None,
    ):
        check_halves(model.config, self.alone)
        mx.eval(model.state)  # MLX arrays not computed yet belong to this thread: compute them here
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or SearchOptions()
        # The newest, for calls with the same options. Any thread may put its own there at any time.
        self.search = Search(model, self.defaults, shortlist)

    def stream_ids(
        self, source: Ids, options: SearchOptions, text: Callable[[Ids], str], begin: Ids = ()
    ) -> Generator[str, None, Hypothesis]:
        """Pieces of the text of what is written as soon as they are certain; in the end, all"""
        search = self.search = self.search.under(options)
        batch = SearchBatch(search.step, [source], [begin])
        told = ""
        with device.side_by_side(1, options.width):
            while batch.open:
                advance({0: batch})
                if batch.open:
                    whole = whole_characters(text(batch.certain([0])[0]))
                else:
                    whole = text(batch.results[0][0].ids)
                if whole.startswith(told) and whole != told:
                    yield whole[len(told) :]
                    told = whole
        return batch.results[0][0]


def whole_characters(text: str) -> str:
    """Without the bytes at its end of a character that has more to come"""
    return text.rstrip("\ufffd")
