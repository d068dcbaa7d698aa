"""Pre-norm models, such as our Multi30k recipe makes, compute the same in transformers and
CTranslate2 with what `export --format pegasus` wrote."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers

from mlx_transformer.__main__ import main
from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.conversion import convert
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import load_recipe
from mlx_transformer.storage import load_model, save_model
from mlx_transformer.tokenizer import Tokenizer
from tests.parity.test_export_marian import (
    PAPER,
    STEPS,
    ctranslate2_ids,
    greedy,
    padded,
    sentences,
    tokenizer,  # noqa: F401  (a fixture)
    until_eos,
)
from tests.parity.torch_reference import randomised

PRE = replace(PAPER, norm="pre", encoder_final_norm=True, decoder_final_norm=True)
CONFIGS = {
    "as our recipe has it": PRE,
    "learned positions": replace(PRE, positions="learned"),
    "bias, gelu, zero start": replace(PRE, output_bias=True, activation="gelu", start_id=None),
}


def export(model: Transformer, tokenizer: Tokenizer, out: Path, format: str = "pegasus") -> int:  # noqa: F811
    """The exit status of the command."""
    directory = out.with_name("ours")
    directory.mkdir()
    save_model(model, directory)
    tokenizer.save(directory)
    return main(["export", str(directory), str(out), "--format", format])


@pytest.fixture
def pegasus(tmp_path: Path) -> Path:
    """Where it goes."""
    return tmp_path / "pegasus"


def test_our_recipe_is_such_a_model() -> None:
    config = load_recipe("multi30k-en-de").model_config(8000, 8000)
    names = ("norm", "encoder_final_norm", "decoder_final_norm", "shared_embeddings", "tied_output")
    assert all(getattr(config, name) == getattr(PRE, name) for name in names)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_are_equal(config, tokenizer: Tokenizer, pegasus: Path) -> None:  # noqa: F811
    model = randomised(config, seed=3)
    assert export(model, tokenizer, pegasus) == 0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(pegasus).eval()
    assert isinstance(theirs, transformers.PegasusForConditionalGeneration)
    ids = [[*tokenizer.encode_source(text), config.eos_id] for text in sentences(1, 20)]
    pad, start = theirs.config.pad_token_id, theirs.config.decoder_start_token_id
    source = padded(ids, pad)
    with torch.no_grad():
        found = theirs(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != pad),
            decoder_input_ids=torch.tensor([[start, 5, 9, 7]] * len(ids)),
        ).logits[..., : config.target_size]
    target = mx.array([[config.first_id, 5, 9, 7]] * len(ids))
    ours = np.array(model(mx.array(padded(ids, config.pad_id)), target))
    assert np.abs(ours - found.numpy()).max() / np.abs(ours).max() < 1e-5


@pytest.mark.slow
def test_text_is_translated_the_same_in_all_three(
    tokenizer: Tokenizer,  # noqa: F811
    pegasus: Path,
) -> None:
    model, texts = randomised(PRE, seed=3), sentences(1, 40)
    assert export(model, tokenizer, pegasus) == 0
    ours = greedy(model, [[*tokenizer.encode_source(text), PRE.eos_id] for text in texts])
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(pegasus).eval()
    words = transformers.AutoTokenizer.from_pretrained(pegasus)
    theirs.generation_config.max_length = STEPS + 1
    inputs = words(texts, return_tensors="pt", padding=True)
    found = theirs.generate(**inputs, num_beams=1)[:, 1:].tolist()
    cut = [until_eos(until_eos(ids, PRE.eos_id), words.pad_token_id) for ids in found]
    assert cut == ours
    assert ctranslate2_ids(pegasus, texts, [PRE.pad_id, PRE.start_id]) == ours


def test_it_comes_back_as_it_was(tokenizer: Tokenizer, pegasus: Path) -> None:  # noqa: F811
    assert export(randomised(PRE, seed=3), tokenizer, pegasus) == 0
    convert(pegasus, pegasus.with_name("back"))
    back = load_model(pegasus.with_name("back"))
    assert (back.config.norm, back.config.encoder_final_norm) == ("pre", True)


@pytest.mark.parametrize(("config", "format"), [(PRE, "marian"), (PAPER, "pegasus")])
def test_the_other_format_is_named(
    config: ModelConfig,
    format: str,
    tokenizer: Tokenizer,  # noqa: F811
    pegasus: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert export(randomised(config, seed=0), tokenizer, pegasus, format) == 2
    other = {"marian": "pegasus has pre-norm", "pegasus": "marian has post-norm"}[format]
    assert other in capsys.readouterr().err
