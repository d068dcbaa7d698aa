"""Text in, text out: order, blank lines, paragraphs, long and strange input, streams."""

import re
import threading
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_transformer import load
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_pairs
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.translator import Translator
from mlx_transformer.errors import InputError
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model

SHORT = SearchOptions(beam=2, max_tokens=8)
MODES = {
    "greedy": SearchOptions(beam=1, max_tokens=20),
    "beam": SearchOptions(beam=3, max_tokens=20),
    "sample": SearchOptions(sample=True, seed=3, max_tokens=20),
}
STRANGE = {
    "empty": "",
    "blank": " \t ",
    "emoji": "👩‍👩‍👧‍👦 🎉",
    "control characters": "one\x01\x02\x7f\x1b[31m two",
    "right to left": "\u202eشكرا جزيلا \u05e9\u05dc\u05d5\u05dd",
    "NUL": "one\x00two\x00",
    "lone surrogate": "one \ud800 two",
    "unknown script": "ᚠᛇᚻ ᛒᛦᚦ ᚠᚱᚩᚠᚢᚱ",
    "other line ends": "one\x0btwo\x0cthree\u2028four\x85five\rsix",
    "one long word": "x" * 400,
}
words = st.sampled_from(
    [
        "one",
        "two",
        "five",
        "seven",
        "hundred",
        "thousand",
        "and",
        ".",
        "!",
        "x",
        "ß",
        "日本",
        "\u200b",
    ]
)
lines = st.one_of(
    st.just(""), st.just("  "), st.text(max_size=20), st.lists(words, max_size=9).map(" ".join)
)

pytestmark = pytest.mark.filterwarnings("ignore:a translation reached its length limit")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return load(write_model(tmp_path_factory.mktemp("model"), make=ending_model, length=6))


def one_line(text: str) -> str:
    return text.replace("\n", " ")


@settings(max_examples=15)
@given(st.lists(lines.map(one_line), max_size=9))
def test_order_and_blank_lines_are_kept(translator: Translator, texts: list[str]) -> None:
    together = [found.text for found in translator.translate(texts, SHORT)]
    assert together == [translator.translate(text, SHORT).text for text in texts]
    assert all(not found for found, text in zip(together, texts, strict=True) if not text.strip())
    assert not any("\n" in found for found in together)


def test_lines_and_sentences_are_put_together_again(translator: Translator) -> None:
    parts = ["one hundred!", "Two hundred?", "Three."]
    one, two, three = (translator.translate(part, SHORT).text for part in parts)
    assert one and two and three
    found = translator.translate(f"{parts[0]}  {parts[1]}\n\n {parts[2]}\n", SHORT)
    assert found.text == f"{one} {two}\n\n{three}\n"


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE.keys())
def test_strange_text_is_still_one_line(translator: Translator, text: str) -> None:
    found = translator.translate(text, SHORT).text
    assert "\n" not in found
    found.encode("utf-8")
    assert "".join(translator.stream(text, SHORT)) == found


def test_ten_thousand_words_are_translated_in_parts(translator: Translator) -> None:
    text = " ".join(["seven"] * 10_000)
    with pytest.warns(UserWarning, match="longer than the 64 tokens the model can read"):
        found = translator.translate(text, SHORT)
    assert len(found.source_tokens) == len(translator.tokenizer.encode_source(text))


def test_a_whole_line_is_one_sentence(translator: Translator) -> None:
    line = "two hundred. Three thousand and ten."
    whole, parts = (translator.translate(line, whole_lines=flag) for flag in (True, False))
    eos = translator.model.config.eos_id
    [[best]] = search(translator.model, translator.tokenizer.sources([line], eos))
    assert whole.text == translator.tokenizer.decode(best.ids) != parts.text
    assert "".join(translator.stream(line, whole_lines=True)) == whole.text


@pytest.mark.parametrize("options", [SearchOptions(beam=1), SearchOptions()])
def test_what_has_no_piece_is_copied(options: SearchOptions) -> None:
    text = "I ❤️ Berlin 😀. My address is tom@tom.de.\nI live in 東京."
    shipped = load()
    found = shipped.translate(text, options).text
    assert [c for c in found if c in "❤️😀@東京⁇"] == [*"❤️😀@東京"]
    assert "".join(shipped.stream(text, options)) == found


def test_a_beginning_keeps_what_has_no_piece() -> None:
    shipped, text, begin = load(), "I like 😀 and tea.\nI like tea.", "❤️ Ich"
    found = shipped.translate(text, prefix=begin).text
    assert found.startswith(begin)
    assert [c for c in found if c in "❤️😀⁇"] == [*"❤️😀"]
    assert "".join(shipped.stream(text, prefix=begin)) == found


def test_what_reaches_the_limit_is_said(tmp_path: Path) -> None:
    never_ending = load(write_model(tmp_path, eos_bias=-1e9))
    with pytest.warns(UserWarning, match="reached its length limit"):
        found = never_ending.translate("five", SHORT)
    assert not found.complete
    assert len(found.tokens) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert never_ending.translate("", SHORT).complete


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
@settings(max_examples=10)
@given(lines)
def test_a_stream_is_the_translation_in_pieces(
    translator: Translator, options: SearchOptions, text: str
) -> None:
    assert "".join(translator.stream(text, options)) == translator.translate(text, options).text


def test_a_greedy_stream_grows_token_by_token(translator: Translator) -> None:
    options = SearchOptions(beam=1, max_tokens=12)
    text = "four hundred and seven thousand and twelve"
    pieces = [piece for piece in translator.stream(text, options) if piece]
    assert len(pieces) >= len(translator.translate(text, options).tokens) - 2 > 3


def test_alternatives_are_the_next_best(translator: Translator) -> None:
    options = SearchOptions(beam=4, nbest=3)
    best = translator.translate("five hundred. And six!", options)
    ranked = [best, *best.alternatives]
    assert len(ranked) == 3
    assert [each.score for each in ranked] == sorted((e.score for e in ranked), reverse=True)
    assert len({tuple(each.tokens) for each in ranked}) == 3


def test_alternatives_of_several_sentences_are_the_best_sums(translator: Translator) -> None:
    options = SearchOptions(beam=6, nbest=6)
    sentences = ["five hundred.", "And six!", "Twelve."]
    ranked = []
    for sentence in sentences:
        best = translator.translate(sentence, options)
        ranked.append([best, *best.alternatives])
    every = sorted((sum(each.score for each in some) for some in product(*ranked)), reverse=True)
    best = translator.translate(" ".join(sentences), options)
    found = [each.score for each in [best, *best.alternatives]]
    np.testing.assert_allclose(found, every[:6], rtol=1e-4)


@pytest.mark.usefixtures("any_device_uncompiled")
def test_a_translation_begins_with_its_prefix(translator: Translator) -> None:
    for options in MODES.values():
        found = translator.translate("five hundred and one", options, prefix="drei und")
        assert found.text.startswith("drei und")


@pytest.mark.usefixtures("any_device_uncompiled")
def test_scores_are_those_of_one_pass_over_the_pair(translator: Translator) -> None:
    model, source = translator.model, [*translator.tokenizer.encode_source("one two six"), 2]
    (found,) = search(model, [source], SearchOptions(beam=4, nbest=4))
    targets = [[*each.ids, 2] if each.complete else each.ids for each in found]
    scores = score_pairs(model, [source] * 4, targets)
    np.testing.assert_allclose([s.logp for s in scores], [h.logp for h in found], rtol=2e-4)
    assert [score.tokens for score in scores] == [len(ids) for ids in targets]


@pytest.mark.usefixtures("any_device_uncompiled")
def test_attention_is_the_mean_over_heads_and_last_layers(translator: Translator) -> None:
    text = "four hundred and seven"
    found = translator.translate(text, attention=True)
    assert found.attention is not None and found.alignment is not None
    source = [*translator.tokenizer.encode_source(text), 2]
    ((best,),) = search(translator.model, [source])
    maps = translator.model.attention_maps(mx.array([source]), mx.array([[1, *best.ids]]))
    expected = np.mean([np.array(layer)[0] for layer in maps.cross[-2:]], axis=(0, 1))
    np.testing.assert_allclose(found.attention, expected[:-1, :-1], atol=1e-6)
    assert found.attention.shape == (len(found.tokens), len(found.source_tokens))


def test_alignment_runs_on_through_sentences(translator: Translator) -> None:
    found = translator.translate("five hundred. Six!", attention=True)
    first = translator.translate("five hundred.", attention=True)
    second = translator.translate("Six!", attention=True)
    assert first.alignment and second.alignment
    source_words = sum(token.startswith("▁") for token in first.source_tokens)
    target_words = len(first.text.split())
    moved = [(i + source_words, j + target_words) for i, j in second.alignment]
    assert found.alignment == first.alignment + moved


def test_another_thread_may_translate(translator: Translator) -> None:
    texts, here = ["one hundred"] * 40, []
    thread = threading.Thread(target=lambda: here.extend(translator.translate(texts, SHORT)))
    thread.start()
    thread.join()
    assert [found.text for found in here] == [
        found.text for found in translator.translate(texts, SHORT)
    ]


def test_options_can_be_given_by_name(translator: Translator) -> None:
    text, wide = "five hundred. And six!", SearchOptions(beam=3, nbest=2)
    assert translator.translate(text, beam=3, nbest=2) == translator.translate(text, wide)
    assert translator.translate([text], wide, nbest=1)[0].alternatives == []
    one_word = "".join(translator.stream(text, beam=1, max_tokens=1))
    assert one_word == translator.translate(text, beam=1, max_tokens=1).text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"beam": 2.5}, "beam must be a whole number, not 2.5"),
        ({"beam": "3"}, "beam must be a whole number, not '3'"),
        ({"alpha": None}, "alpha must be a number, not None"),
        ({"sample": 1}, "sample must be true or false, not 1"),
        ({"stop": "soon"}, "stop must be one of"),
    ],
)
def test_an_option_of_the_wrong_kind_is_said(
    translator: Translator, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        translator.translate("six", **changes)
    assert SearchOptions(alpha=1) == SearchOptions(alpha=1.0)


def test_what_cannot_be_scored_in_pairs_is_said(translator: Translator) -> None:
    for sources, targets in ((["a"], []), ([], ["a"]), (["a", "b"], ["c"])):
        with pytest.raises(InputError, match="each source needs its target"):
            translator.score(sources, targets)
    with pytest.raises(InputError, match="score takes lists of texts"):
        translator.score("six", "one")
    assert translator.score([], []) == []


@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_a_stream_has_no_empty_pieces(translator: Translator, options: SearchOptions) -> None:
    assert all(translator.stream("five hundred. And six!\n\nseven", options))


def test_without_a_name_the_shipped_model_is_loaded() -> None:
    assert load().translate("Good morning.").text.startswith("Guten Morgen")
