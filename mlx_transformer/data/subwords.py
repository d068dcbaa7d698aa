"""Learning a SentencePiece model from text."""

import io
import re
from collections.abc import Iterable, Sequence

from sentencepiece import SentencePieceTrainer

from mlx_transformer.errors import InputError
from mlx_transformer.recipes import TokenizerConfig

# Enough to learn any vocabulary, few enough to keep the trainer's memory in bounds.
MAX_SENTENCES = 2_000_000


def learn(sentences: Iterable[str], config: TokenizerConfig, gaps: Sequence[str] = ()) -> bytes:
    """A serialised model with our special ids: pad 0, start 1, end 2, unknown 3, then gaps."""
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=config.type,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            user_defined_symbols=list(gaps),
            minloglevel=2,  # what goes wrong is raised; nothing is printed
        )
    except RuntimeError as error:
        raise _explained(error, config) from error
    return model.getvalue()


def _explained(error: RuntimeError, config: TokenizerConfig) -> InputError:
    """SentencePiece's complaint as a sentence about the recipe."""
    if most := re.search(r"value <= (\d+)", str(error)):
        return InputError(
            f"tokenizer.vocab_size {config.vocab_size} is more than this text allows: "
            f"the largest possible is {most[1]}"
        )
    if least := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error)):
        return InputError(
            f"tokenizer.vocab_size {config.vocab_size} is less than the {least[1]} that the "
            "text's characters and the special ids need"
        )
    if "sentences_.empty()" in str(error):
        return InputError(
            "the training text is empty or not UTF-8: there is no vocabulary to learn"
        )
    return InputError(f"SentencePiece cannot learn a vocabulary from this text: {error}")
