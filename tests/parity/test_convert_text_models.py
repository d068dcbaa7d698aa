"""GPT-2, BERT, RoBERTa and DistilBERT, as written by transformers itself."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mlx_transformer.__main__ import main
from mlx_transformer.convert.conversion import convert
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_texts
from mlx_transformer.decoding.search import search
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model
from tests.parity.text_models import BARE, ENCODERS, GPT2, VOCABULARY

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(0)
END = 57  # of GPT-2's texts
NEW = 20
PROMPTS = [RANDOM.integers(3, 57, 1 + i % 9).tolist() for i in range(50)]


def converted(original: PreTrainedModel, tmp_path: Path) -> Transformer:
    original.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    return load_model(tmp_path / "ours")


def assert_close(ours: mx.array, theirs: torch.Tensor) -> None:
    """Within 1e-5 of the largest"""
    largest = theirs.abs().max().item()
    np.testing.assert_allclose(np.array(ours), theirs.numpy(), rtol=0, atol=1e-5 * largest)


@torch.no_grad()
def test_gpt2(tmp_path: Path) -> None:
    original = GPT2()
    model = converted(original, tmp_path)
    assert model.config.alone == "decoder" and model.config.tied_output
    ids = RANDOM.integers(0, VOCABULARY, (8, 30))
    assert_close(model(mx.array(ids)), original(torch.from_numpy(ids)).logits)
    for text, score in zip(PROMPTS[:9], score_texts(model, PROMPTS[:9]), strict=True):
        if len(text) > 1:
            loss = original(torch.tensor([text]), labels=torch.tensor([text])).loss.item()
            assert score.logp == pytest.approx(-loss * (len(text) - 1), abs=1e-3)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_with_its_head(name: str, tmp_path: Path) -> None:
    original = ENCODERS[name]()
    model = converted(original, tmp_path)
    assert model.config.alone == "encoder" and model.config.word_head == "transform"
    ids, real = padded_texts(model.config.pad_id)
    theirs = original(torch.from_numpy(ids), attention_mask=torch.from_numpy(real).long())[0]
    assert_close(model(mx.array(ids))[0], theirs[0])
    found = np.array(model(mx.array(ids)))[real]
    assert_close(mx.array(found), theirs[torch.from_numpy(real)])


@pytest.mark.parametrize("name", BARE)
@torch.no_grad()
def test_an_encoder_without_a_head_makes_vectors(name: str, tmp_path: Path) -> None:
    original = BARE[name]()
    model = converted(original, tmp_path)
    assert model.config.word_head == "none"
    ids, real = padded_texts(model.config.pad_id)
    theirs = original(torch.from_numpy(ids), attention_mask=torch.from_numpy(real).long())
    found = np.array(model.encode(mx.array(ids)))[real]
    assert_close(mx.array(found), theirs.last_hidden_state[torch.from_numpy(real)])


def padded_texts(pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids (8,20) of texts of several lengths, and where they are real"""
    ids = RANDOM.integers(3, VOCABULARY, (8, 20))
    real = np.arange(20) < RANDOM.integers(1, 21, (8, 1))
    real[0] = True
    return np.where(real, ids, pad_id), real


# Writing


def generated(model: PreTrainedModel, prompt: list[int], **options: Any) -> list[int]:
    """What `generate` writes behind a prompt, without the end"""
    ids = torch.tensor([prompt])
    rows = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, pad_token_id=0, **options
    )
    row = rows[0, len(prompt) :].tolist()
    return row[: row.index(END)] if END in row else row


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Transformer]:
    """A GPT-2 that ends some texts"""
    original = GPT2()
    with torch.no_grad():
        original.transformer.wte.weight[END] *= 1.6
    return original, converted(original, tmp_path_factory.mktemp("gpt2"))


SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"beam": 1}, {"do_sample": False}),
    "beam": (
        {"beam": 4, "alpha": 1.0, "length_penalty": "plain", "stop": "likely"},
        {"do_sample": False, "num_beams": 4},
    ),
    "beam, a long answer": (
        {"beam": 3, "alpha": 2.0, "length_penalty": "plain", "stop": "full", "min_tokens": 5},
        {"do_sample": False, "num_beams": 3, "length_penalty": 2.0, "early_stopping": True,
         "min_new_tokens": 5},
    ),
    "nothing twice": (
        {"beam": 1, "no_repeat_ngram": 2},
        {"do_sample": False, "no_repeat_ngram_size": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCHES)
def test_writing_equals_generate(name: str, writers: tuple[PreTrainedModel, Transformer]) -> None:
    original, model = writers
    ours, theirs = SEARCHES[name]
    options = SearchOptions(**ours, max_tokens=NEW, ban_padding=False)
    found = [results[0].ids for results in search(model, PROMPTS, options)]
    assert found == [generated(original, prompt, **theirs) for prompt in PROMPTS]
    assert len(set(map(tuple, found))) > 20  # the prompts matter
    assert any(len(ids) < NEW for ids in found)


SAMPLINGS = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_k": 50, "top_p": 0.8}]


@pytest.mark.parametrize("wishes", SAMPLINGS)
def test_sampling_with_the_same_noise_equals_generate(
    wishes: dict[str, float], writers: tuple[PreTrainedModel, Transformer]
) -> None:
    original, model = writers
    options = SearchOptions(sample=True, max_tokens=NEW, ban_padding=False, seed=3, **wishes)
    for prompt in PROMPTS[:20]:
        draws = iter(np.random.default_rng([3, *prompt]).random(NEW, np.float32))

        def pick(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
            order = weights[0].argsort(descending=True, stable=True)
            if not wishes or "temperature" in wishes:
                order = torch.arange(VOCABULARY)
            mass = weights[0][order].cumsum(0)
            place = (mass > float(next(draws)) * mass[-1]).int().argmax()  # noqa: B023
            return order[place].reshape(1, 1)

        with patch.object(torch, "multinomial", pick):
            expected = generated(original, prompt, do_sample=True, **{"top_k": 0, **wishes})
        ((found,),) = search(model, [prompt], options)
        assert found.ids == expected


# What goes wrong, and the command


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    original = GPT2()
    original.config.scale_attn_by_inverse_layer_idx = True
    with pytest.raises(InputError, match="scaled by the number of the layer"):
        converted(original, tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "roberta", "without a head"])
def test_a_conversion_verifies_itself(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = {"gpt2": GPT2, "roberta": ENCODERS["roberta"], "without a head": BARE["bert"]}[name]
    make().save_pretrained(tmp_path / "theirs")
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--verify"]) == 0
    assert "computes what the original computes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gpt2", "distilbert"])
def test_a_converted_model_is_quantised(name: str, tmp_path: Path) -> None:
    original = GPT2() if name == "gpt2" else ENCODERS[name]()
    model = converted(original, tmp_path)
    convert(tmp_path / "ours", tmp_path / "half", dtype="float16")
    ids = mx.array([[5, 6, 7, 8]])
    half = load_model(tmp_path / "half", mx.float32)
    np.testing.assert_allclose(np.array(half(ids)), np.array(model(ids)), atol=0.05)
    assert (tmp_path / "ours" / "generation.json").is_file() == (name == "gpt2")
    assert (tmp_path / "half" / "generation.json").is_file() == (name == "gpt2")
