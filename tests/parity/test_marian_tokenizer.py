"""The Marian tokenizer against the real one of transformers: the same ids, the same text."""

import io
import json
import random
from pathlib import Path

import pytest
import transformers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from mlx_transformer.data import numbers
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

NASTY = [
    "",
    " ",
    "   leading and trailing   ",
    ">>de<< twenty-two",
    ">>de<<twenty-two",
    "  >>de<< twenty-two",
    ">>xx<< an unknown tag",
    ">>de no end",
    ">>de<< >>fr<< two tags",
    "a tag >>de<< inside",
    "\0",
    "NUL \0 inside",
    "bell \a and escape \x1b[0m",
    "😀 one 👩‍👩‍👧 two",
    "שלום עולם",
    "مرحبا \u202e reversed",
    "two\nlines\tand\r\ntabs",
    "▁one ▁ two",
    "</s>",
    "one</s>two",
    "one </s> two",
    "<pad> <unk> <s> </S>",
    "one</s></s> >>de<< two",
    "e\u0301 ﬁ … ½ ２",
    'one , two ! don \'t " three " .',
]


@pytest.fixture(scope="module", params=["one vocabulary", "two vocabularies"])
def both(request, tmp_path_factory) -> tuple[Tokenizer, "transformers.MarianTokenizer"]:
    """A directory laid out as OPUS-MT's are, opened by both."""
    folder = tmp_path_factory.mktemp("marian")
    pieces = {
        side: write_spm(folder / f"{side}.spm", side, [pair[i] for pair in numbers.pairs("valid")])
        for i, side in enumerate(["source", "target"])
    }
    separate = request.param == "two vocabularies"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "de", "separate_vocabs": separate})
    )
    if separate:
        write_vocab(folder / "vocab.json", pieces["source"])
        write_vocab(folder / "target_vocab.json", pieces["target"])
    else:
        write_vocab(folder / "vocab.json", [*pieces["source"], *pieces["target"]])
    return load_tokenizer(folder), transformers.MarianTokenizer.from_pretrained(str(folder))


def write_spm(path: Path, side: str, lines: list[str]) -> list[str]:
    """Train a model whose ids are nothing like the vocabulary's; returns its pieces, shuffled."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*lines, "Emoji 😀, “quotes” and , spaced ! signs ."]),
        model_writer=model,
        vocab_size=150,
        model_type="bpe",
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    processor = SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
    random.Random(side).shuffle(pieces)
    return pieces[:-10]  # some pieces have no id, as happens in published models


def write_vocab(path: Path, pieces: list[str]) -> None:
    words = dict.fromkeys(["</s>", "<unk>", ">>de<<", ">>fr<<", *pieces, "<pad>"])
    path.write_text(json.dumps({word: i for i, word in enumerate(words)}))


def test_ids_are_equal(both):
    ours, theirs = both
    texts = [*NASTY, *(word for pair in numbers.pairs("test")[:200] for word in pair)]
    for text in texts:
        assert ours.encode_source(text) == theirs(text)["input_ids"][:-1], text
        assert ours.encode_target(text) == theirs(text_target=text)["input_ids"][:-1], text
    batch = theirs(texts)["input_ids"]
    assert ours.encode_source_batch(texts) == [ids[:-1] for ids in batch]


def test_text_is_equal(both):
    ours, theirs = both
    random_ids = random.Random(0)
    sequences = [
        [random_ids.randrange(ours.target_vocab_size) for _ in range(random_ids.randrange(20))]
        for _ in range(300)
    ]
    sequences += [ours.encode_target(text) for text in NASTY]
    for ids in sequences:
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ids
