"""transformers and CTranslate2 load what `export --format marian` wrote, and compute the same."""

import io
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ctranslate2
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
import sentencepiece
import torch
import transformers

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.export_marian import export_marian
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import Tokenizer, sentencepiece_tokenizer
from tests.parity.torch_reference import randomised

torch.set_num_threads(1)  # these matrices are too small to share

SENTENCES = 120
STEPS = 12
TEXT = """the a dog cat man woman child runs sits jumps over under near red green blue ball house
street water two three people playing with and his her small large young old wearing shirt Straße
Mädchen läuft springt über grünes Gras, Wasser. Haus! spielen?"""


def sentences(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(TEXT.split(), k=draw.randint(1, 14))) for _ in range(count)]


def trained(seed: int, size: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(seed, 400)),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return sentencepiece_tokenizer(trained(0, 120))


PAPER = ModelConfig(
    vocab_size=120, encoder_layers=2, decoder_layers=2, d_model=64, d_ff=96, h=4, max_length=64
)
CONFIGS = {
    "paper": PAPER,
    "learned positions": replace(PAPER, positions="learned", position_offset=2),
    "fairseq positions": replace(
        PAPER,
        position_layout="halves",
        position_divisor_minus_one=True,
        position_offset=2,
        padding_has_position=False,
    ),
    "untied": replace(PAPER, shared_embeddings=False, tied_output=False, output_bias=True),
    "shared, output apart": replace(PAPER, tied_output=False, scale_embedding=False),
    "no attention bias, swish": replace(PAPER, attention_bias=False, activation="swish"),
    "gelu, starts from eos": replace(PAPER, activation="gelu", start_id=2),
    "gelu_tanh, zero start": replace(PAPER, activation="gelu_tanh", start_id=None),
    "3 + 1 layers": replace(PAPER, encoder_layers=3, decoder_layers=1),
}


def padded(batch: Sequence[Sequence[int]], pad: int) -> np.ndarray:
    width = max(map(len, batch))
    return np.array([[*ids, *[pad] * (width - len(ids))] for ids in batch])


def greedy(model: Transformer, batch: Sequence[Sequence[int]]) -> list[list[int]]:
    """The best next word of the whole model, STEPS times; never padding or the start."""
    config = model.config
    source = mx.array(padded(batch, config.pad_id))
    start = config.pad_id if config.start_id is None else config.start_id
    target = np.full((len(batch), 1), start)
    never = list({config.pad_id, start} - {config.eos_id})
    for _ in range(STEPS):
        logits = np.array(model(source, mx.array(target))[:, -1])
        logits[:, never] = -np.inf
        target = np.append(target, logits.argmax(axis=-1, keepdims=True), axis=1)
    return [until_eos(row, config.eos_id) for row in target[:, 1:].tolist()]


def until_eos(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos)] if eos in ids else ids


def transformers_ids(directory: Path, texts: list[str], **options) -> list[list[int]]:
    theirs = transformers.MarianMTModel.from_pretrained(directory).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(directory)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    theirs.generation_config.max_length = STEPS + 1
    output = theirs.generate(**inputs, **{"num_beams": 1, **options})[:, 1:].tolist()
    return [until_eos(until_eos(ids, tokenizer.eos_token_id), tokenizer.pad_token_id)
            for ids in output]  # fmt: skip


def ctranslate2_ids(
    directory: Path, texts: list[str], never: list[int], **options
) -> list[list[int]]:
    tokenizer = transformers.MarianTokenizer.from_pretrained(directory)
    converter = ctranslate2.converters.TransformersConverter(str(directory))
    converted = converter.convert(str(directory / "ctranslate2"))
    translator = ctranslate2.Translator(
        converted, device="cpu", compute_type="float32", intra_threads=1
    )
    results = translator.translate_batch(
        [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts],
        **{"beam_size": 1, **options},
        min_decoding_length=0,
        max_decoding_length=STEPS,
        suppress_sequences=[tokenizer.convert_ids_to_tokens([i]) for i in never],
    )
    return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_are_equal(config, tokenizer, tmp_path):
    model = randomised(config, seed=3)
    export_marian(model, tokenizer, tmp_path)
    ids = [[*tokenizer.encode_source(text), config.eos_id] for text in sentences(1, 20)]
    assert largest_difference(model, tmp_path, ids) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy_ids_are_equal_in_all_three(config, tokenizer, tmp_path):
    model = randomised(config, seed=3)
    export_marian(model, tokenizer, tmp_path)
    texts = sentences(1, SENTENCES)
    ours = greedy(model, [[*tokenizer.encode_source(text), config.eos_id] for text in texts])
    assert len(set(map(tuple, ours))) > 5  # the source does matter
    assert transformers_ids(tmp_path, texts) == ours
    never = sorted({config.pad_id, config.start_id or 0} - {config.eos_id})
    assert ctranslate2_ids(tmp_path, texts, never) == ours


@pytest.fixture(scope="module")
def reverser(tokenizer) -> Transformer:
    """A model that has half learned to say its source backwards: every output is another."""
    mx.random.seed(0)
    model = Transformer(PAPER)
    optimizer = optim.Adam(2e-3, bias_correction=True)

    def loss(model: Transformer, source: mx.array, target: mx.array) -> mx.array:
        words = target[:, 1:]
        losses = nn.losses.cross_entropy(model(source, target[:, :-1]), words)
        return (losses * (words != PAPER.pad_id)).sum() / (words != PAPER.pad_id).sum()

    step = nn.value_and_grad(model, loss)
    ids = [tokenizer.encode_source(text)[:STEPS] for text in sentences(9, 9600)]
    for i in range(0, len(ids), 48):
        source = padded([[*x, PAPER.eos_id] for x in ids[i : i + 48]], PAPER.pad_id)
        target = padded([[1, *x[::-1], PAPER.eos_id] for x in ids[i : i + 48]], PAPER.pad_id)
        optimizer.update(model, step(model, mx.array(source), mx.array(target))[1])
        mx.eval(model.state, optimizer.state)
    return model


@pytest.mark.slow
def test_a_trained_model_writes_the_same_ids_everywhere(reverser, tokenizer, tmp_path):
    export_marian(reverser, tokenizer, tmp_path)
    texts = sentences(10, SENTENCES)
    ours = greedy(reverser, [[*tokenizer.encode_source(text), PAPER.eos_id] for text in texts])
    assert len(set(map(tuple, ours))) > SENTENCES * 0.9
    assert sum(len(ids) < STEPS for ids in ours) > SENTENCES // 8
    assert transformers_ids(tmp_path, texts) == ours
    assert ctranslate2_ids(tmp_path, texts, []) == ours


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beams_find_the_same_everywhere(alpha, reverser, tokenizer, tmp_path):
    """With the plain penalty, and stopping only when no open hypothesis can win any more."""
    export_marian(reverser, tokenizer, tmp_path)
    texts = sentences(10, SENTENCES)
    ids = [[*tokenizer.encode_source(text), PAPER.eos_id] for text in texts]
    options = SearchOptions(beam=4, alpha=alpha, length_penalty="plain", max_tokens=STEPS)
    ours = [until_eos(found[0].ids, PAPER.eos_id) for found in search(reverser, ids, options)]
    beam = {"num_beams": 4, "length_penalty": alpha, "early_stopping": "never"}
    assert transformers_ids(tmp_path, texts, **beam) == ours
    # CTranslate2 stops as soon as it has `patience` times the beam of finished hypotheses.
    beam = {"beam_size": 4, "length_penalty": alpha, "patience": 3}
    assert ctranslate2_ids(tmp_path, texts, [], **beam) == ours


def largest_difference(model: Transformer, directory: Path, batch: list[list[int]]) -> float:
    """Of the logits of random targets, relative to the largest logit."""
    config = model.config
    theirs = transformers.MarianMTModel.from_pretrained(directory).eval()
    start = theirs.config.decoder_start_token_id
    target = np.random.default_rng(0).integers(4, config.target_size, (len(batch), 9))
    target[:, 0] = 0 if config.start_id is None else config.start_id
    ours = np.array(model(mx.array(padded(batch, config.pad_id)), mx.array(target)))
    target[:, 0] = start
    source = torch.tensor(padded(batch, start))
    with torch.no_grad():
        logits = theirs(source, source != start, decoder_input_ids=torch.tensor(target)).logits
    return np.abs(logits[..., : config.target_size].numpy() - ours).max() / np.abs(ours).max()


def test_text_has_the_same_ids_and_ids_the_same_text(tokenizer, tmp_path):
    export_marian(randomised(PAPER, 0), tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*sentences(2, SENTENCES), "", "   ", "ein Wort: 中国語!", "<s> & <dog>", "a  b\tc"]
    for text in texts:
        ids = tokenizer.encode_source(text)
        assert theirs(text).input_ids == [*ids, PAPER.eos_id]
        known = [i for i in ids if i != tokenizer.unk_id]  # a special token only to them
        assert theirs.decode(known, skip_special_tokens=True) == tokenizer.decode(known)


def test_transformers_saves_it_again_whole_when_told_as_the_card_says(tokenizer, tmp_path):
    export_marian(randomised(PAPER, 0), tokenizer, tmp_path)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path)
    line = re.search(
        r"`(model\._keys_to_ignore_on_save = .*)`", (tmp_path / "README.md").read_text()
    )
    exec(line[1], {"model": theirs})
    theirs.save_pretrained(tmp_path / "again")
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "again")
    for (name, tensor), saved in zip(
        theirs.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, saved), name


@pytest.mark.slow
def test_a_marian_vocabulary_stays_as_it_is(tokenizer, tmp_path):
    """The last row is padding, start and zero already: nothing is added or moved."""
    last = PAPER.vocab_size
    config = replace(
        PAPER,
        vocab_size=last + 1,
        target_vocab_size=None,
        pad_id=last,
        start_id=last,
        position_layout="halves",
    )
    model = randomised(config, 4)
    model.source_words.weight[last] = 0
    export_marian(model, tokenizer, tmp_path)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path)
    assert theirs.config.vocab_size == last + 1
    assert theirs.config.decoder_start_token_id == theirs.config.pad_token_id == last
    assert not theirs.final_logits_bias.any()
    # Their own sinusoids are the table that was written.
    table = theirs.model.decoder.embed_positions
    assert torch.equal(table.weight, table.create_weight())
    texts = sentences(5, SENTENCES)
    ours = greedy(model, [[*tokenizer.encode_source(text), PAPER.eos_id] for text in texts])
    assert transformers_ids(tmp_path, texts) == ours
    assert ctranslate2_ids(tmp_path, texts, []) == ours


@pytest.mark.slow
def test_two_vocabularies_of_different_sizes_load_in_transformers(tmp_path):
    pair = sentencepiece_tokenizer(trained(0, 120), trained(7, 100))
    config = replace(PAPER, shared_embeddings=False, target_vocab_size=100)
    model = randomised(config, 6)
    export_marian(model, pair, tmp_path)
    texts = sentences(8, SENTENCES)
    ours = greedy(model, [[*pair.encode_source(text), config.eos_id] for text in texts])
    assert transformers_ids(tmp_path, texts) == ours
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in texts:
        ids = pair.encode_target(text)
        assert theirs.decode(ids, skip_special_tokens=True) == pair.decode(ids)
        assert theirs(text_target=text).input_ids == [*ids, config.eos_id]
