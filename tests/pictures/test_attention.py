"""The weights shown are those the model used; words are found and named."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_transformer.decoding.cache
import mlx_transformer.model
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import load
from mlx_transformer.errors import InputError
from mlx_transformer.pictures.attention import (
    KINDS,
    Panel,
    View,
    attention_of,
    find_word,
    label,
    panels,
)
from tests.decoding.random_models import random_model, random_source
from tests.numpy_attention import attention_weights
from tests.tiny_directory import write_model

VARIANTS = {
    "paper": {"encoder_layers": 2},
    "pre-norm": {"norm": "pre", "encoder_final_norm": True, "decoder_final_norm": True},
    "head sizes of their own": {"d_k": 5, "d_v": 3, "attention_bias": False},
    "two vocabularies": {"target_vocab_size": 15, "shared_embeddings": False, "start_id": None},
    "learned positions": {"positions": "learned", "position_offset": 2},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())


def same(a, b) -> bool:
    return np.allclose(a, b, atol=2e-5)


@pytest.mark.usefixtures("any_device")
@every_variant
def test_weights_equal_a_plain_softmax_in_numpy_with_and_without_padding(changes):
    model = random_model(3, **changes)
    config, generator = model.config, np.random.default_rng(5)
    start = config.pad_id if config.start_id is None else config.start_id
    sources = [random_source(generator, model, words) for words in (3, 9, 1)]
    reads = [[start, *random_source(generator, model, words)[:-1]] for words in (4, 2, 7)]

    def padded(rows):
        longest = max(map(len, rows))
        return mx.array([row + [config.pad_id] * (longest - len(row)) for row in rows])

    together = model.attention_maps(padded(sources), padded(reads))
    for i, (source, read) in enumerate(zip(sources, reads, strict=True)):
        expected = attention_weights(model, source, read)
        alone = model.attention_maps(mx.array([source]), mx.array([read]))
        for kind in KINDS:
            real = np.array(expected[kind])  # (layers, h, queries, keys)
            n_queries, n_keys = real.shape[2:]
            assert same(np.array(mx.concatenate(getattr(alone, kind))), real)
            batch = np.array(mx.stack(getattr(together, kind)))[:, i, :, :n_queries]
            assert same(batch[..., :n_keys], real)
            assert np.all(batch[..., n_keys:] == 0)  # nobody looks at padding
            assert np.allclose(batch.sum(-1), 1, atol=1e-5)


@pytest.mark.usefixtures("any_device_uncompiled")
@pytest.mark.parametrize("beam", [1, 4])
def test_weights_equal_those_of_the_search_that_found_the_translation(beam, monkeypatch):
    """Every attention of a search over a padded batch is recorded, for all its hypotheses.

    A drawn row must be, in all layers and heads at once, what one hypothesis used in that step.
    """
    model = random_model(11, eos_bias=2.0)
    config, generator = model.config, np.random.default_rng(2)
    sources = [random_source(generator, model, words) for words in (6, 3, 9)]
    options = SearchOptions(beam=beam, min_tokens=5, no_repeat_ngram=1)
    with monkeypatch.context() as patch:
        calls = record_attention(patch)
        found = search(model, sources, options)
    decoder_calls = iter(calls[config.encoder_layers :])
    steps = list(zip(*[decoder_calls] * (2 * config.decoder_layers), strict=True))
    for source, [best] in zip(sources, found, strict=True):
        assert len(best.ids) >= 5
        maps = model.attention_maps(mx.array([source]), mx.array([[config.start_id, *best.ids]]))
        for t in range(len(best.ids) + best.complete):
            drawn = []
            for decoder, cross in zip(maps.decoder, maps.cross, strict=True):
                drawn += [np.array(decoder)[0, :, t, : t + 1], np.array(cross)[0, :, t]]
            matches = [
                all(a.shape == b.shape and same(a, b) for a, b in zip(used, drawn, strict=True))
                for used in zip(*steps[t], strict=True)
            ]
            assert any(matches) and not all(matches)


def record_attention(monkeypatch) -> list[list[np.ndarray]]:
    """By call of attention, the weights (h, keys not masked) of each of its B * K queries."""
    calls = []

    def record(q, k, mask):
        Q, K = (np.array(x, dtype=np.float64) for x in (q, k))
        seen = np.array(True if mask is None else mask)
        keep = np.broadcast_to(seen, (*Q.shape[:3], K.shape[2]))
        scores = np.where(keep, Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1]), -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        sentences, _, queries, _ = weights.shape
        calls.append(
            [weights[b, :, i][:, keep[b, 0, i]] for b in range(sentences) for i in range(queries)]
        )

    def before(module, name):
        function = getattr(module, name)

        def recording(q, k, v, mask, *others):
            record(q, k, mask)
            return function(q, k, v, mask, *others)

        monkeypatch.setattr(module, name, recording)

    before(mlx_transformer.model, "attend")
    return calls


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return load(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def attention(translator):
    written = [
        *translator.tokenizer.encode_target("zweiundzwanzig"),
        translator.model.config.eos_id,
    ]
    model, tokenizer, text = translator.model, translator.tokenizer, "twenty-two"
    source = [*tokenizer.encode_source(text), model.config.eos_id]
    return attention_of(model, tokenizer, text, source, written)


def test_rows_are_named_after_the_word_being_written(translator, attention):
    pieces = translator.tokenizer.target.tokens(
        translator.tokenizer.encode_target("zweiundzwanzig")
    )
    assert attention.written == [*pieces, "</s>"]
    assert attention.read == ["<s>", *pieces]
    assert "".join(attention.source) == "▁twenty-two</s>"
    assert (attention.text, attention.translation) == ("twenty-two", "zweiundzwanzig")


def test_weights_of_text_equal_numpy(translator, attention):
    config, tokenizer = translator.model.config, translator.tokenizer
    source = [*tokenizer.encode_source("twenty-two"), config.eos_id]
    read = [config.start_id, *tokenizer.encode_target("zweiundzwanzig")]
    expected = attention_weights(translator.model, source, read)
    for kind in KINDS:
        assert same(attention.weights(kind), np.array(expected[kind]))
        assert np.allclose(attention.weights(kind).sum(-1), 1, atol=1e-5)


def test_a_view_picks_layers_and_heads(attention):
    [[last]] = panels(attention, View())
    assert (last.kind, last.layer, list(last.heads)) == ("cross", 2, [1, 2, 3, 4])
    rows = panels(attention, View(kinds=("encoder", "decoder"), layers=None, heads=(3, 1)))
    assert [[panel.layer for panel in row] for row in rows] == [[1], [1, 2]]
    assert np.array_equal(rows[1][0].weights, attention.decoder[0][[2, 0]])
    assert rows[1][1].title == "Decoder self-attention, layer 2 of 2"


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (View(layers=(3,)), "no layer 3: the model has layers 1 to 2"),
        (View(layers=(0,)), "no layer 0"),
        (View(heads=(1, 9)), "no head 9: the model has heads 1 to 4"),
    ],
)
def test_what_is_not_there_is_named(attention, view, words):
    with pytest.raises(InputError, match=words):
        panels(attention, view)


def test_a_text_longer_than_the_model_is_refused(translator):
    with pytest.raises(InputError, match="more than the model's 64: split it"):
        attention_of(translator.model, translator.tokenizer, "one " * 70, [5] * 70, [2])


def panel(queries, keys=()):
    weights = np.zeros((1, len(queries), len(keys)))
    return Panel("cross", 1, 1, [1], queries, keys, weights)


SENTENCE = ["▁In", "▁its", "▁in", "box", ",", "▁it", "▁is", "▁in", ".", "</s>"]


@pytest.mark.parametrize(
    ("word", "places"),
    [
        ("its", [1]),
        ("inbox", [2, 3]),
        ("in", [7]),  # the word, not the beginning of another
        ("box", [3]),  # nowhere whole: the part of a word
        ("inbox,", [2, 3, 4]),
        (",", [4]),
        ("</s>", [9]),
    ],
)
def test_a_word_is_found_whole_before_in_parts(word, places):
    assert find_word(panel(SENTENCE), word) == ("queries", places)


def test_a_word_of_the_other_side_and_one_of_neither():
    assert find_word(panel(SENTENCE, ["▁drin", "▁its"]), "drin") == ("keys", [0])
    with pytest.raises(InputError, match=r"'cat' is not in the cross-attention.* In its in ·box"):
        find_word(panel(SENTENCE), "cat")


@pytest.mark.parametrize(
    ("token", "shown"),
    [("▁Hund", "Hund"), ("ee", "·ee"), (".", "."), ("▁", "▁"), ("</s>", "</s>"), ("é", "·é")],
)
def test_tokens_are_shown_as_people_read_them(token, shown):
    assert label(token) == shown
