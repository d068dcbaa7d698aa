"""A batch watched from outside, as a server does: sentences that leave, words that are certain."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_transformer.decoding.batch import SearchBatch
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search, search
from tests.decoding.random_models import random_model, random_source

BEAM = SearchOptions(beam=3)


@pytest.fixture
def case():
    """A model, seven sources of different lengths, and what a plain search finds for them."""
    model = random_model(3, eos_bias=2.0, vocab_size=30)
    r = np.random.default_rng(0)
    sources = [random_source(r, model, n) for n in (9, 3, 5, 7, 2, 8, 4)]
    return model, sources, search(model, sources, BEAM)


def test_sentences_that_are_dropped_leave_and_the_others_do_not_notice(case) -> None:
    model, sources, wanted = case
    batch = SearchBatch(Search(model, BEAM).step, sources)
    sizes = []
    while batch.open:
        if len(sizes) == 2:
            batch.drop([0, 2, 5, 6])
        mx.async_eval(batch.step())
        batch.settle()
        sizes.append(batch.rows)
    assert sizes[2] <= 3
    for i in (1, 3, 4):
        assert batch.results[i][0].ids == wanted[i][0].ids


def test_a_batch_whose_sentences_were_all_dropped_is_over(case) -> None:
    model, sources, _ = case
    batch = SearchBatch(Search(model, BEAM).step, sources)
    batch.drop(range(len(sources)))
    for _ in range(2):
        mx.async_eval(batch.step())
        batch.settle()
    assert not batch.open


def test_what_is_certain_grows_and_is_how_the_result_begins(case) -> None:
    model, sources, wanted = case
    batch = SearchBatch(Search(model, BEAM).step, sources)
    certain: dict[int, list[int]] = {i: [] for i in range(len(sources))}
    while batch.open:
        mx.async_eval(batch.step())
        batch.settle()
        for number, ids in batch.certain(range(len(sources))).items():
            assert ids[: len(certain[number])] == certain[number]
            assert wanted[number][0].ids[: len(ids)] == ids
            certain[number] = ids
    assert sum(map(len, certain.values())) > len(sources)
