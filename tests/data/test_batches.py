"""Batches: every pair once an epoch, any position restored, shards that make up the whole."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_transformer.config import ModelConfig, preset
from mlx_transformer.data.batches import Batch, Batches, Position, prefetch
from mlx_transformer.data.corpus import ParallelCorpus, Sentences
from mlx_transformer.data.prepare import prepare
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import load_recipe

CONFIG = preset("tiny", vocab_size=100)


def corpus_of(pairs: list[tuple[list[int], list[int]]]) -> ParallelCorpus:
    sides = [Sentences.from_lists(side) for side in zip(*pairs, strict=True)]
    return ParallelCorpus(sides[0], sides[1], 100, 100, [], [])


def random_pairs(number: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Distinct pairs: the first two pieces of the source are its number."""
    random = np.random.default_rng(seed)
    return [
        (
            [4 + i // 90, 4 + i % 90, *random.integers(4, 100, random.integers(1, 20)).tolist()],
            random.integers(4, 100, random.integers(1, 20)).tolist(),
        )
        for i in range(number)
    ]


def pairs_in(batch: Batch, config: ModelConfig = CONFIG) -> list[tuple[list[int], list[int]]]:
    """What a batch says, read token by token; checks on the way that the rest is padding."""
    pairs = []
    for source, target_in, target_out in zip(
        batch.source.tolist(), batch.target_in.tolist(), batch.target_out.tolist(), strict=True
    ):
        if config.eos_id not in source:
            assert {*source, *target_in, *target_out} == {config.pad_id}
            continue
        s, t = source.index(config.eos_id), target_out.index(config.eos_id)
        assert set(source[s + 1 :]) <= {config.pad_id}
        assert set(target_out[t + 1 :]) <= {config.pad_id}
        assert target_in == [
            config.pad_id if config.start_id is None else config.start_id,
            *target_out[:t],
            *target_out[t + 1 :],
        ]
        pairs.append((source[:s], target_out[:t]))
    return pairs


def epoch_of(batches: Batches, number: int) -> list[Batch]:
    start = Position(number, 0)
    return list(islice(batches.stream(start), len(batches)))


@given(st.integers(1, 300), st.integers(24, 400), st.integers(1, 8), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once(number, budget, most, epoch):
    pairs = random_pairs(number)
    batches = Batches(corpus_of(pairs), CONFIG, budget, max_shapes=most)
    found = [pair for batch in epoch_of(batches, epoch) for pair in pairs_in(batch)]
    assert sorted(found) == sorted(pairs)


def test_arrays_have_the_shapes_of_the_grid():
    batches = Batches(corpus_of(random_pairs(300)), CONFIG, 200, max_shapes=6)
    seen = set()
    for batch in epoch_of(batches, 0):
        assert batch.target_in.shape == batch.target_out.shape
        assert batch.source.shape[0] == batch.target_in.shape[0]
        assert {a.dtype for a in (batch.source, batch.target_in, batch.target_out)} == {
            np.dtype(np.int32)
        }
        seen.add((*batch.source.shape, batch.target_in.shape[1]))
    assert seen == set(batches.shapes)
    assert len(seen) <= 6


def test_tokens_are_counted_and_efficiency_is_their_share():
    pairs = random_pairs(300)
    batches = Batches(corpus_of(pairs), CONFIG, 200)
    real = room = 0
    for batch in epoch_of(batches, 0):
        rows = pairs_in(batch)
        assert batch.source_tokens == sum(len(s) + 1 for s, _ in rows)
        assert batch.target_tokens == sum(len(t) + 1 for _, t in rows)
        assert batch.total_target_tokens == batch.target_tokens
        real += batch.source_tokens + batch.target_tokens
        room += batch.source.size + batch.target_out.size
    assert real == sum(len(s) + len(t) + 2 for s, t in pairs)
    assert batches.efficiency == pytest.approx(real / room)


def test_epochs_and_seeds_differ_and_repeat():
    corpus = corpus_of(random_pairs(300))

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [
            plan.pairs.tolist() for plan in Batches(corpus, CONFIG, 200, seed=seed).epoch(epoch)
        ]

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_batches_meet_other_pairs_in_another_epoch():
    batches = Batches(corpus_of(random_pairs(300)), CONFIG, 200)
    first, second = (
        {frozenset(plan.pairs.tolist()) for plan in batches.epoch(n) if len(plan.pairs) > 3}
        for n in (0, 1)
    )
    assert len(first & second) < len(first) / 4


@pytest.mark.parametrize("done", [0, 1, 7, 20, 45])
def test_a_restored_stream_goes_on_where_it_was(done):
    batches = Batches(corpus_of(random_pairs(100)), CONFIG, 100, seed=5)
    whole = list(islice(batches.stream(), 60))
    position = whole[done - 1].position if done else Position()
    restored = Batches(corpus_of(random_pairs(100)), CONFIG, 100, seed=5).stream(position)
    for expected, batch in zip(whole[done:], restored, strict=False):
        assert batch.position == expected.position
        assert np.array_equal(batch.source, expected.source)
        assert np.array_equal(batch.target_out, expected.target_out)


def test_positions_roll_over_at_the_end_of_an_epoch():
    batches = Batches(corpus_of(random_pairs(100)), CONFIG, 100)
    positions = [batch.position for batch in islice(batches.stream(), 2 * len(batches))]
    n = len(batches)
    assert positions == [(i // n, i % n) for i in range(1, 2 * n + 1)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shards_make_up_the_whole_batch(size):
    corpus = corpus_of(random_pairs(200))
    whole = Batches(corpus, CONFIG, 150)
    shards = [Batches(corpus, CONFIG, 150, rank=rank, size=size) for rank in range(size)]
    for batch, *parts in islice(
        zip(whole.stream(), *(shard.stream() for shard in shards), strict=True), 30
    ):
        assert sorted(pairs_in(batch)) == sorted(p for part in parts for p in pairs_in(part))
        assert len({part.source.shape for part in parts}) == 1  # one shape on all machines
        assert sum(part.target_tokens for part in parts) == batch.target_tokens
        assert sum(part.source_tokens for part in parts) == batch.source_tokens
        assert {part.total_target_tokens for part in parts} == {batch.target_tokens}
        assert {part.position for part in parts} == {batch.position}
        lengths = [len(pairs_in(part)) for part in parts]
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("pad", "start", "eos"),
    [(1, 2, 2), (99, 99, 0), (3, None, 0)],
    ids=["fairseq", "marian", "c++"],
)
def test_special_ids_are_the_models(pad, start, eos):
    config = preset("tiny", vocab_size=100, pad_id=pad, start_id=start, eos_id=eos)
    pairs = [([4, 5, 6], [7, 8]), ([9], [10, 11, 12])]
    batches = Batches(corpus_of(pairs), config, 50)
    found = [pair for batch in epoch_of(batches, 0) for pair in pairs_in(batch, config)]
    assert sorted(found) == pairs


def test_no_pairs_are_said():
    with pytest.raises(InputError, match="there are no sentence pairs"):
        Batches(
            ParallelCorpus(Sentences.from_lists([]), Sentences.from_lists([]), 9, 9, [], []),
            CONFIG,
            100,
        )


def test_text_that_the_model_cannot_take_is_said():
    corpus = corpus_of([([4] * 9, [5] * 9)])
    with pytest.raises(
        InputError, match="the longest sentence has 10 tokens, but the model takes 9"
    ):
        Batches(corpus, preset("tiny", vocab_size=100, max_length=9), 100)
    with pytest.raises(InputError, match="prepared with 100 pieces, but the model knows 99"):
        Batches(corpus, preset("tiny", vocab_size=99), 100)


@pytest.fixture(scope="module", params=["tokenizer.vocab_size=8000", "tokenizer.vocab_size=10000"])
def captions(request, multi30k: Path, tmp_path_factory) -> ParallelCorpus:
    out = tmp_path_factory.mktemp("multi30k") / "out"
    prepare(load_recipe("multi30k-en-de", [f"data.dir={multi30k}", request.param]), out)
    return ParallelCorpus.open(out, "train")


@pytest.mark.slow
@pytest.mark.parametrize("budget", [4096, 8192])
def test_on_real_text_95_percent_of_the_tokens_are_real(captions, budget):
    config = preset("tiny", vocab_size=captions.source_vocab_size)
    batches = Batches(captions, config, budget)
    assert len(batches.shapes) <= 32
    real = room = rows = 0
    for batch in epoch_of(batches, 0):  # counted in the arrays, not from our own figures
        assert max(batch.source.size, batch.target_out.size) <= budget
        for ids in (batch.source, batch.target_out):
            real += np.count_nonzero(ids != config.pad_id)
            room += ids.size
        rows += np.count_nonzero(batch.source[:, 0] != config.pad_id)
    assert rows == len(captions) == 29_000
    assert real / room >= 0.95
    assert batches.efficiency == pytest.approx(real / room)


# Prefetching


def test_prefetched_items_are_the_items_in_order():
    assert list(prefetch(iter(range(100)), depth=3)) == list(range(100))


def test_prefetching_runs_ahead_but_not_far():
    made = []

    def items() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    ahead = prefetch(items(), depth=3)
    assert next(ahead) == 0
    ahead.close()
    assert len(made) <= 6


def test_an_exception_arrives_where_it_would_have():
    def items() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    ahead = prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(ahead)


def test_closing_ends_the_thread():
    batches = Batches(corpus_of(random_pairs(100)), CONFIG, 100)
    ahead = prefetch(batches.stream())
    next(ahead)
    assert "prefetch" in {thread.name for thread in threading.enumerate()}
    ahead.close()
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
