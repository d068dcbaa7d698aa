"""The search finds what transformers' `generate` finds, with the same weights on real sentences."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers

from mlx_transformer.convert.conversion import convert
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_pairs
from mlx_transformer.decoding.search import search
from mlx_transformer.model import Transformer
from mlx_transformer.storage import load_model

SENTENCES = 200
LIMIT = 40
EOS, PAD = 0, 499  # as in OPUS-MT: the end is the first id, padding and start are the last

pytestmark = pytest.mark.slow

torch.set_num_threads(1)  # these matrices are too small to share


def random_marian() -> transformers.MarianMTModel:
    """Weights far from zero, so that words differ in probability and sources matter."""
    config = transformers.MarianConfig(
        vocab_size=PAD + 1,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_position_embeddings=128,
        activation_function="swish",
        eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = transformers.MarianMTModel(config).eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "embed_positions" not in name:
                deviation = 1.5 / weights.shape[-1] ** 0.5 if weights.ndim == 2 else 0.3
                noise = torch.randn(weights.shape, generator=draw) * deviation
                weights.copy_(noise + name.endswith("norm.weight"))
    return model


def learn_to_end(model: transformers.MarianMTModel, sources: torch.Tensor, length: int) -> None:
    """Let sentences end after about so many tokens.

    A unit of the decoder is left to the positions, which rise in it for the first 28 tokens; its
    value decides on the end.
    """
    unit = 10  # sin(position / 10000^(10/32))
    with torch.no_grad():
        words = model.model.shared.weight
        words[:, unit] = 0
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight.copy_(words)
        for layer in model.model.decoder.layers:
            for last in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
                last.weight[unit], last.bias[unit] = 0, 0
            norms = (
                layer.self_attn_layer_norm,
                layer.encoder_attn_layer_norm,
                layer.final_layer_norm,
            )
            for norm in norms:
                norm.weight[unit], norm.bias[unit] = 3, 0
        draw = torch.Generator().manual_seed(8)
        target = torch.randint(1, PAD, (len(sources), 28), generator=draw)
        ran = model(sources, decoder_input_ids=target, output_hidden_states=True)
        heights = ran.decoder_hidden_states[-1][..., unit].mean(dim=0)
        slope = 2 * length / (heights[-1] - heights[0])
        model.lm_head.weight[EOS] = slope * (torch.arange(64) == unit)
        top = ran.logits.amax(dim=-1).mean()
        model.final_logits_bias[0, EOS] = top - slope * heights[length]


@pytest.fixture(scope="module")
def sources(multi30k: Path) -> list[list[int]]:
    """Sentences of the test set as ids that end in EOS"""
    lines = (multi30k / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=PAD, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [[*(max(i, 1) for i in ids), EOS] for ids in processor.encode(lines[:SENTENCES])]


@pytest.fixture(scope="module")
def theirs(sources: list[list[int]]) -> transformers.MarianMTModel:
    model = random_marian()
    learn_to_end(model, padded(sources[:16]), 18)
    return model


@pytest.fixture(scope="module")
def ours(
    theirs: transformers.MarianMTModel, tmp_path_factory: pytest.TempPathFactory
) -> Transformer:
    folder = tmp_path_factory.mktemp("marian")
    theirs.save_pretrained(folder / "theirs")
    convert(folder / "theirs", folder / "ours")
    return load_model(folder / "ours")


def padded(ids: Sequence[Sequence[int]]) -> torch.Tensor:
    rows = [torch.tensor(row) for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def generated(
    model: transformers.MarianMTModel, sources: Sequence[Sequence[int]], **options: Any
) -> list[list[int]]:
    """What `generate` writes, the end included where it was reached"""
    found = []
    for i in range(0, len(sources), 50):
        batch = padded(sources[i : i + 50])
        rows = model.generate(
            batch,
            attention_mask=(batch != PAD).long(),
            max_new_tokens=LIMIT,
            do_sample=False,
            bad_words_ids=[[PAD]],  # as every OPUS-MT model has it
            **options,
        )
        found += [row[1:] for row in rows.tolist()]
    return [row[: row.index(EOS) + 1] if EOS in row else row[:LIMIT] for row in found]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"beam": 1}, {"num_beams": 1}),
    "beam 4": ({"beam": 4, "alpha": 1.0}, {"num_beams": 4, "length_penalty": 1.0}),
    "beam 4, alpha 0.6": ({"beam": 4, "alpha": 0.6}, {"num_beams": 4, "length_penalty": 0.6}),
    "greedy, no word twice": (
        {"beam": 1, "no_repeat_ngram": 1},
        {"num_beams": 1, "no_repeat_ngram_size": 1},
    ),
    "beam 4, no pair twice, at least 8": (
        {"beam": 4, "alpha": 1.0, "no_repeat_ngram": 2, "min_tokens": 8},
        {"num_beams": 4, "length_penalty": 1.0, "no_repeat_ngram_size": 2, "min_new_tokens": 8},
    ),
}


@pytest.mark.parametrize(("options", "settings"), CASES.values(), ids=CASES)
def test_ids_are_those_of_generate(
    sources: list[list[int]],
    theirs: transformers.MarianMTModel,
    ours: Transformer,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    asked = SearchOptions(**options, length_penalty="plain", max_tokens=LIMIT)
    if "length_penalty" in settings:
        settings = settings | {"early_stopping": "never"}  # stop when nothing open can win
    expected = generated(theirs, sources, **settings)
    best = [results[0] for results in search(ours, sources, asked)]
    found = [[*one.ids, EOS] if one.complete else one.ids for one in best]

    # They are worth comparing: many are unlike all others, and most end by themselves.
    assert len({tuple(ids) for ids in expected}) > 0.4 * SENTENCES
    assert sum(ids[-1] == EOS for ids in expected) > 0.9 * SENTENCES
    different = [i for i in range(SENTENCES) if found[i] != expected[i]]
    assert scores_differ(ours, sources, found, expected, different, asked.penalty) < 1e-4


def scores_differ(
    model: Transformer,
    sources: list[list[int]],
    found: list[list[int]],
    expected: list[list[int]],
    numbers: list[int],
    penalty: Callable[[int], float],
) -> float:
    """The greatest difference in score between two answers to the same sentence"""
    if not numbers:
        return 0.0
    texts = [sources[i] for i in numbers]
    scores = [
        [score.logp / penalty(score.tokens) for score in score_pairs(model, texts, answers)]
        for answers in ([found[i] for i in numbers], [expected[i] for i in numbers])
    ]
    return max(abs(a - b) for a, b in zip(*scores, strict=True))
