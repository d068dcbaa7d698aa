"""Published BART and mT5 weights give what transformers gives."""

import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BartForConditionalGeneration, MT5Config, MT5ForConditionalGeneration

from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.decoding.options import model_options
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import load
from mlx_transformer.storage import load_model
from tests.parity.test_fine_tuning import batches, falls_alike, uncompiled  # noqa: F401
from tests.real.models import real_model

pytestmark = pytest.mark.slow

WORDS = 1000
LONGEST = 40


@pytest.fixture(scope="module")
def words(multi30k: Path) -> list[str]:
    """The first words of a text, each once"""
    text = (multi30k / "train.en").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r"[A-Za-z']+", text)))[:WORDS]


def test_bart_writes_the_phonemes_that_transformers_writes(
    words: list[str], tmp_path: Path
) -> None:
    folder = real_model("bart-g2p") / "hf"
    convert(folder, tmp_path / "ours")
    graphemes = json.loads((folder / "characters.json").read_text(encoding="utf-8"))["graphemes"]
    numbers = {character: i for i, character in enumerate(graphemes)}
    sources = [[1, *(numbers.get(c, 3) for c in word), 2] for word in words]
    theirs = BartForConditionalGeneration.from_pretrained(folder).eval()
    batch = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sources], True, 0)
    rows = theirs.generate(batch, attention_mask=(batch != 0).long(), max_new_tokens=LONGEST)
    expected = [[i for i in row[1:] if i not in (0, 2)] for row in rows.tolist()]
    found = search(load_model(tmp_path / "ours"), sources, model_options(tmp_path / "ours"))
    assert len(found) == WORDS
    assert [results[0].ids for results in found] == expected


def test_bart_reads_and_writes_text(tmp_path: Path) -> None:
    """As its authors show it."""
    convert(real_model("bart-g2p") / "hf", tmp_path / "ours")
    translator = load(tmp_path / "ours")
    texts = [t.text for t in translator.translate(["hello", "transformer", "photosynthesis"])]
    assert texts == ["hˈɛlO", "tɹænsfˈɔɹməɹ", "fˌOɾOsˈɪnθəsɪs"]


@pytest.mark.usefixtures("uncompiled")
def test_bart_goes_on_learning_as_in_pytorch(tmp_path: Path) -> None:
    theirs = BartForConditionalGeneration.from_pretrained(real_model("bart-g2p") / "hf").eval()
    falls_alike(theirs, batches(theirs, words=40), tmp_path)


def test_mt5_gives_transformers_logits(tmp_path: Path) -> None:
    """Embeddings and head are apart, and 3 heads of 64 are not d_model; there is no config.json."""
    file = real_model("mt5-smiles") / "model.safetensors"
    names = (
        (r"^encoder_embedding\.", "encoder.embed_tokens."),
        (r"^decoder_emebedding\.", "decoder.embed_tokens."),
    )
    settings = {"h": 3, "pad_id": 0, "eos_id": 1, "start_id": 2}
    convert(file, tmp_path / "ours", Options(renames=names, settings=settings))
    ours = load_model(tmp_path / "ours")
    theirs = their_mt5(file)
    rng = np.random.default_rng(0)
    source, target = rng.integers(3, 138, (8, 30)), rng.integers(3, 822, (8, 20))
    source[3:, 20:] = 0
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != 0).long(),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()
    found = np.array(ours(mx.array(source), mx.array(target)))
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def their_mt5(file: Path) -> MT5ForConditionalGeneration:
    """transformers' blocks, with an embedding of its own in each stack"""
    config = MT5Config(
        vocab_size=822, d_model=256, d_kv=64, d_ff=512, num_layers=4, num_decoder_layers=4,
        num_heads=3, decoder_start_token_id=2,
    )  # fmt: skip
    model = MT5ForConditionalGeneration(config).eval()
    weights = load_file(file)
    model.encoder.embed_tokens = torch.nn.Embedding(138, 256)
    model.decoder.embed_tokens = torch.nn.Embedding(822, 256)
    model.lm_head = torch.nn.Linear(256, 822, bias=False)
    model.encoder.embed_tokens.weight.data = weights.pop("encoder_embedding.weight")
    model.decoder.embed_tokens.weight.data = weights.pop("decoder_emebedding.weight")
    lost = model.load_state_dict(weights, strict=False)
    assert not lost.unexpected_keys
    assert set(lost.missing_keys) <= {
        "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    }  # fmt: skip
    return model
