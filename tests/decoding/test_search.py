"""The search against plain Python, and what must hold of it whatever the model."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_transformer.decoding.batch import Hypothesis
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search, Sentence, search
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from tests.decoding.random_models import random_model, random_source
from tests.decoding.search_reference import (
    Judge,
    Words,
    beam_search,
    exhaustive_search,
    greedy_search,
    paper_penalty,
    plain_penalty,
)

seeds = st.integers(0, 2**32 - 1)


def penalty_of(options: SearchOptions) -> Any:
    form = paper_penalty if options.length_penalty == "paper" else plain_penalty
    return partial(form, alpha=options.alpha)


def never(model: Transformer) -> set[int]:
    config = model.config
    return {config.pad_id, config.start_id} - {config.eos_id, None}


def with_end(model: Transformer, found: Hypothesis) -> Words:
    return (*found.ids, model.config.eos_id) if found.complete else tuple(found.ids)


def random_case(seed: int) -> tuple[Transformer, list[list[int]], SearchOptions]:
    """A model, a batch of sources and options, all different from seed to seed."""
    r = np.random.default_rng(seed)
    model = random_model(
        seed,
        eos_bias=float(r.uniform(-1, 3)),
        vocab_size=int(r.integers(6, 40)),
        norm=str(r.choice(["post", "pre"])),
        start_id=[1, 2, None][r.integers(3)],
        tied_output=bool(r.integers(2)),
        decoder_cell=["self-attention", "ssru"][seed % 2],
    )
    beam = int(r.integers(2, 6))
    options = SearchOptions(
        beam=beam,
        nbest=int(r.integers(1, beam + 1)),
        alpha=float(r.choice([0, 0.6, 1, 1.5])),
        length_penalty=str(r.choice(["paper", "plain"])),  # type: ignore[arg-type]
        max_tokens=int(r.integers(1, 9)),
    )
    sources = [random_source(r, model, int(r.integers(0, 7))) for _ in range(int(r.integers(1, 4)))]
    return model, sources, options


def differences(seed: int) -> int:
    """Sentences of a random case whose results are not those of the reference."""
    model, sources, options = random_case(seed)
    wrong = 0
    for source, found in zip(sources, search(model, sources, options), strict=True):
        expected = beam_search(
            Judge(model, source),
            options.beam,
            options.nbest,
            penalty_of(options),
            options.max_tokens or 0,
            model.config.eos_id,
            lambda _: never(model),
        )
        same = [with_end(model, h) for h in found] == [words for words, _ in expected]
        close = np.allclose([h.score for h in found], [s for _, s in expected], atol=1e-3)
        wrong += not (same and close)
    return wrong


@pytest.mark.usefixtures("any_device_uncompiled")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_beam_search_equals_plain_python(first: int) -> None:
    assert sum(differences(seed) for seed in range(first, first + 20)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 500, 44))
def test_beam_search_equals_plain_python_on_the_rest_of_500_cases(first: int) -> None:
    assert sum(differences(seed) for seed in range(first, first + 44)) == 0


@pytest.mark.usefixtures("any_device_uncompiled")
@pytest.mark.parametrize("seed", range(10))
def test_a_wide_beam_finds_what_exhaustive_search_finds(seed: int) -> None:
    """Three ordinary words, at most four tokens: 27 stems fit a beam of 81."""
    model = random_model(seed, eos_bias=1.0, vocab_size=6)
    source = random_source(np.random.default_rng(seed), model, 4)
    options = SearchOptions(beam=81, nbest=20, alpha=0.6, max_tokens=4)
    (found,) = search(model, [source], options)
    expected = exhaustive_search(Judge(model, source), penalty_of(options), 4, 2, [2, 3, 4, 5])[:20]
    assert [with_end(model, h) for h in found] == [words for words, _ in expected]
    np.testing.assert_allclose([h.score for h in found], [s for _, s in expected], atol=1e-3)


@pytest.mark.usefixtures("any_device_uncompiled")
@settings(max_examples=25)
@given(seeds)
def test_beam_1_is_greedy(seed: int) -> None:
    model, sources, _ = random_case(seed)
    options = SearchOptions(beam=1, max_tokens=10)
    for source, (found,) in zip(sources, search(model, sources, options), strict=True):
        words, score = greedy_search(
            Judge(model, source), penalty_of(options), 10, 2, lambda _: never(model)
        )
        assert with_end(model, found) == words
        assert found.score == pytest.approx(score, abs=1e-3)


@pytest.mark.usefixtures("any_device_uncompiled")
@settings(max_examples=25)
@given(seeds, st.integers(0, 4), st.integers(1, 3), st.booleans())
def test_constraints_equal_those_of_the_reference(
    seed: int, least: int, n: int, with_prefix: bool
) -> None:
    """Minimum length, banned words, no repeated n-gram and a forced prefix, all together"""
    model = random_model(seed, eos_bias=2.0)
    r = np.random.default_rng(seed)
    source = random_source(r, model, 5)
    prefix = tuple(random_source(r, model, 2)[:-1]) if with_prefix else ()
    options = SearchOptions(
        beam=3, nbest=3, min_tokens=least, no_repeat_ngram=n, banned=(5, 7), max_tokens=7
    )

    def forbidden(words: Words) -> set[int]:
        if len(words) < len(prefix):
            return set(range(12)) - {prefix[len(words)]}
        grams = {words[i : i + n] for i in range(len(words) - n + 1)}
        repeated = {w for w in range(12) if (*words[len(words) - n + 1 :], w) in grams}
        return never(model) | {5, 7} | repeated | ({2} if len(words) < least else set())

    judge = Judge(model, source)
    judge.known |= {prefix[:i]: np.zeros(12) for i in range(len(prefix))}  # a prefix is certain
    expected = beam_search(judge, 3, 3, penalty_of(options), 7, 2, forbidden)
    (found,) = search(model, [source], options, [prefix])
    assert [with_end(model, h) for h in found] == [words for words, _ in expected]
    np.testing.assert_allclose([h.score for h in found], [s for _, s in expected], atol=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("any_device_uncompiled")
@settings(max_examples=20)
@given(seeds, st.sampled_from(["beam", "greedy", "sample"]))
def test_batch_equals_single(seed: int, how: str) -> None:
    r = np.random.default_rng(seed)
    model = random_model(seed, eos_bias=float(r.uniform(0, 3)), vocab_size=30)
    sources = [random_source(r, model, int(r.integers(0, 20))) for _ in range(7)]
    options = {
        "beam": SearchOptions(beam=3, nbest=2, max_tokens=20),
        "greedy": SearchOptions(beam=1, max_tokens=20),
        "sample": SearchOptions(sample=True, nbest=2, seed=seed, max_tokens=20),
    }[how]
    together = search(model, sources, options)
    for source, found in zip(sources, together, strict=True):
        (alone,) = search(model, [source], options)
        assert [h.ids for h in found] == [h.ids for h in alone]
        np.testing.assert_allclose([h.score for h in found], [h.score for h in alone], atol=1e-3)


def test_windows_and_lanes_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sentences than a window holds, read lazily and searched side by side"""
    monkeypatch.setattr("mlx_transformer.decoding.search.FIRST_WINDOW", 24)
    model = random_model(5, eos_bias=2.0, vocab_size=30)
    r = np.random.default_rng(5)
    sources = [random_source(r, model, int(r.integers(0, 9))) for _ in range(100)]
    options = SearchOptions(beam=4, max_tokens=12)
    read = 0

    def reading() -> Iterator[Sentence]:
        nonlocal read
        for source in sources:
            read += 1
            yield source, ()

    found = Search(model, options).each(reading(), window=24)
    results = [next(found)]
    assert 24 <= read < 100
    results += found
    assert [h.ids for h, *_ in results] == [h.ids for h, *_ in search(model, sources, options)]


@pytest.mark.usefixtures("any_device_uncompiled")
@settings(max_examples=20)
@given(seeds, st.booleans())
def test_cached_equals_uncached(seed: int, sample: bool) -> None:
    """The log-probability summed up step by step is that of one pass over the whole target."""
    r = np.random.default_rng(seed)
    model = random_model(seed, eos_bias=-1.0)
    source = random_source(r, model, 6)
    options = SearchOptions(beam=4, nbest=4, max_tokens=40, sample=sample, seed=seed)
    (found,) = search(model, [source], options)
    for hypothesis in found:
        words = with_end(model, hypothesis)
        logits = model(mx.array([source]), mx.array([[1, *words[:-1]]]))[0]
        logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        expected = mx.sum(mx.take_along_axis(logp, mx.array(words)[:, None], axis=1)).item()
        assert hypothesis.logp == pytest.approx(expected, rel=1e-4, abs=1e-4)


@settings(max_examples=20)
@given(seeds, st.integers(2, 6))
def test_nbest_is_sorted_and_distinct(seed: int, n: int) -> None:
    r = np.random.default_rng(seed)
    model = random_model(seed, eos_bias=2.0)
    sources = [random_source(r, model, 4) for _ in range(3)]
    for found in search(model, sources, SearchOptions(beam=6, nbest=n)):
        scores = [h.score for h in found]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.ids) for h in found}) == len(found) == n


@pytest.mark.usefixtures("any_device_uncompiled")
def test_search_updates_with_the_model() -> None:
    """Validation during training: a search after an update sees the new weights."""
    model, other = random_model(1), random_model(2)
    source = random_source(np.random.default_rng(0), model, 5)
    search(model, [source])
    model.update(other.parameters())
    assert search(model, [source]) == search(other, [source])


def test_the_length_limit_is_the_source_and_fifty_more() -> None:
    model = random_model(3, eos_bias=-1e9, max_length=80)
    sources = [random_source(np.random.default_rng(0), model, n) for n in (0, 3, 70)]
    for beam in (1, 3):
        found = search(model, sources, SearchOptions(beam=beam))
        assert [len(best.ids) for best, *_ in found] == [50, 53, 80]
        assert not any(best.complete for best, *_ in found)


def test_nothing_to_search_and_nothing_to_say() -> None:
    model = random_model(4)
    assert search(model, []) == []
    everything = SearchOptions(beam=2, banned=tuple(range(12)), max_tokens=3)
    ((found,),) = search(model, [[3, 2]], everything)
    assert (found.ids, found.complete) == ([], False)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"nbest": 10**9, "sample": True}, "nbest must be from 1 to 1,000"),
        ({"alpha": 1e300}, "alpha must be from 0 to 100"),
        ({"temperature": 1e-300}, "temperature must be from"),
        ({"seed": 2**64}, "seed must be from 0 to"),
        ({"max_tokens": 10**30}, "max_tokens must be from 1 to 1,000,000"),
        ({"beam": 0}, "beam must be from 1 to 1,000"),
        ({"nbest": 5}, "nbest 5 needs a beam at least as wide"),
        ({"alpha": -0.1}, "alpha must be from 0 to 100"),
        ({"alpha": float("nan")}, "alpha must be from 0 to 100"),
        ({"temperature": 0.0}, "temperature must be from 0.001 to 1,000"),
        ({"top_p": 0.0}, "top_p must be more than 0"),
        ({"top_k": 0}, "top_k must be from 1 to"),
        ({"max_tokens": 0}, "max_tokens must be from 1 to"),
        ({"length_penalty": "long"}, "length_penalty must be one of .paper., .plain."),
        ({"banned": (99,)}, "names word 99"),
    ],
)
def test_wrong_options_are_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        search(random_model(0), [[3, 2]], SearchOptions(**wrong))


def test_a_source_longer_than_the_model_is_refused() -> None:
    with pytest.raises(InputError, match="65 tokens are more than the model's 64"):
        search(random_model(0), [[3] * 65])


def test_a_beam_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(0, vocab_size=500)
    source = [5, 6, 7, model.config.eos_id]
    assert search(model, [source], SearchOptions(beam=8, max_tokens=4))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    with pytest.raises(InputError, match=r"400 hypotheses .* narrower beam"):
        search(model, [source], SearchOptions(beam=400, max_tokens=4))


def test_a_wide_beam_takes_few_sentences_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_transformer.decoding.search.BATCH_HYPOTHESES", 16)
    model, options = random_model(1), SearchOptions(beam=8, max_tokens=3)
    sources = [[5 + i, 6, model.config.eos_id] for i in range(5)]
    together = search(model, sources, options)
    assert [[h.ids for h in found] for found in together] == [
        [h.ids for h in search(model, [source], options)[0]] for source in sources
    ]
