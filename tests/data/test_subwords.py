"""Learned SentencePiece models: our ids, the same every time, and limits that are true."""

import re

import pytest
from sentencepiece import SentencePieceProcessor

from mlx_transformer.data import numbers, subwords
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import TokenizerConfig

LINES = [line for pair in numbers.pairs("valid")[:300] for line in pair]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learning_is_deterministic_and_uses_our_ids(kind):
    config = TokenizerConfig(type=kind, vocab_size=100)
    model = subwords.learn(LINES, config)
    assert model == subwords.learn(LINES, config)
    processor = SentencePieceProcessor(model_proto=model)
    assert processor.vocab_size() == 100
    ids = [processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()]
    assert ids == [0, 1, 2, 3]
    assert processor.decode(processor.encode("fünfzig tausend")) == "fünfzig tausend"


def limit(vocab_size: int, kind: str, words: str) -> int:
    with pytest.raises(InputError) as error:
        subwords.learn(LINES, TokenizerConfig(type=kind, vocab_size=vocab_size))
    assert f"tokenizer.vocab_size {vocab_size} is" in str(error.value)
    number = re.search(words, str(error.value))
    assert number, str(error.value)
    return int(number[1])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_larger_than_the_text_allows(kind):
    """The largest size that the message names works, and one more does not."""
    largest = limit(50_000, kind, r"the largest possible is (\d+)")
    subwords.learn(LINES, TokenizerConfig(type=kind, vocab_size=largest))
    assert limit(largest + 1, kind, r"the largest possible is (\d+)") == largest


def test_a_vocabulary_smaller_than_the_characters():
    least = limit(10, "bpe", r"less than the (\d+) that")
    subwords.learn(LINES, TokenizerConfig(vocab_size=least))
    assert limit(least - 1, "bpe", r"less than the (\d+) that") == least


def test_no_text_at_all():
    with pytest.raises(InputError, match="the training text is empty"):
        subwords.learn(["", ""], TokenizerConfig())


def test_nothing_is_printed(capfd):
    subwords.learn(LINES, TokenizerConfig(vocab_size=100))
    assert capfd.readouterr() == ("", "")
