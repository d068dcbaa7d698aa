"""How fast a model trains and translates here, and how near that is to what the machine can do.

The limit is the time of a step's matrix products alone, in the same lanes and in turn with the
step itself: what a busy machine does to the one it does to the other. Weights, words and lengths
are made up, for speed depends on shapes only.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_transformer import device
from mlx_transformer.config import ModelConfig
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import Search
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.storage import count_parameters, load_to_compute
from mlx_transformer.training.step import MicroBatch, TrainStep, initial_state

SENTENCES = 64
LENGTH = 32  # of each, source and target: 2,048 tokens to train on
BEAM = 4
ROUNDS = 5

TellStage = Callable[[str], None]  # told what comes next
STAGES = 4  # of a measurement


@dataclass(frozen=True)
class Throughput:
    """One kind of work."""

    tokens_per_second: float  # target tokens
    share_of_limit: float  # time of the matrix products / time of the whole
    peak_megabytes: float


@dataclass(frozen=True)
class Speed:
    """What was measured of a model."""

    model: str
    parameters: int
    train: Throughput | None  # None: a quantised model cannot train
    greedy: Throughput
    beam: Throughput
    first_translation_seconds: float  # of a new process, from its start to its end


def measure(name: str, directory: Path, tell: TellStage) -> Speed:
    """All there is to know about the speed of the model in `directory`."""
    model = load_to_compute(directory)
    config, length = model.config, min(LENGTH, model.config.max_length)
    parameters = count_parameters(config)
    share = -(-SENTENCES // device.lane_count())
    sources = random_ids(config, SENTENCES, length).tolist()
    found = {}
    for stage, beam in (("greedy", 1), (f"beam {BEAM}", BEAM)):
        tell(stage)
        work = partial(translate, fixed_length_search(model, length, beam), sources)
        found[beam] = rate(
            SENTENCES * length, work, search_products(config, share, beam, length, length)
        )

    tell("first translation")
    code = f"import sys; from {__name__} import translate_once; translate_once(sys.argv[1])"
    command = [sys.executable, "-c", code, str(directory)]
    (first,) = seconds_in_turn(partial(subprocess.run, command, check=True), rounds=3)

    train = None
    if ModelConfig.load(directory / "config.json").quantization is None:
        tell("train")
        training = Training(model, [random_batch(config, SENTENCES, length)])
        train = rate(
            SENTENCES * length, training.run, training_products(config, share, length, length)
        )
    return Speed(name, parameters, train, found[1], found[BEAM], first)


def rate(tokens: int, work: Callable[[], object], limit: Sequence["Product"]) -> Throughput:
    """Do `work`, which makes so many tokens, in turn with the products that limit it."""
    mx.reset_peak_memory()
    work()
    megabytes = mx.get_peak_memory() / 1e6
    seconds, least = seconds_in_turn(work, Products(limit).run)
    return Throughput(tokens / seconds, least / seconds, megabytes)


def seconds_in_turn(*works: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """The median time of each, all of them warm and taken in turn."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(1 + rounds):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [median(taken[1:]) for taken in times]


# What is measured


class Training:
    """A model in training, as `mlx-transformer train` does it."""

    def __init__(self, model: Transformer, batches: Sequence[MicroBatch]) -> None:
        config = TrainingConfig()
        self._step = TrainStep(model.config, config, lanes=device.lane_count())
        self._state = self._step.pack(initial_state(model, config))
        self._batches = batches

    def run(self) -> None:
        """One step on every batch."""
        with device.side_by_side(device.lane_count()):
            for batch in self._batches:
                self._state, _ = self._step(self._state, [batch])
                mx.async_eval(self._state)
            mx.eval(self._state)


def fixed_length_search(model: Transformer, length: int, beam: int) -> Search:
    """A search that writes exactly `length` tokens: random weights do not know when to end."""
    return Search(model, SearchOptions(beam=beam, min_tokens=length, max_tokens=length))


def translate(search: Search, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ids of the best translations."""
    return [best.ids for best, *_ in search.each([(ids, ()) for ids in sources], window=None)]


def translate_once(directory: str) -> None:
    """What a user waits for: the model from disk, and one sentence."""
    model = load_to_compute(Path(directory))
    length = min(LENGTH, model.config.max_length)
    source = random_ids(model.config, 1, length).tolist()
    translate(fixed_length_search(model, length, BEAM), source)


def random_batch(config: ModelConfig, B: int, length: int) -> MicroBatch:
    """source, target input and output, (B,length) each and without padding"""
    source, target = (random_ids(config, B, length) for _ in range(2))
    start = np.full((B, 1), config.first_id)
    shifted = np.concatenate([start, target[:, :-1]], axis=1)
    return mx.array(source), mx.array(shifted), mx.array(target)


def random_ids(config: ModelConfig, B: int, length: int) -> np.ndarray:
    """(B,length) ids of words, the last of each row the end of sentence"""
    words = np.arange(min(config.vocab_size, config.target_size))
    special = [i for i in (config.pad_id, config.eos_id, config.start_id) if i is not None]
    words = words[~np.isin(words, special)]
    ids = np.random.default_rng(0).choice(words, (B, length))
    ids[:, -1] = config.eos_id
    return ids


# The limit: matrix products


class Product(NamedTuple):
    """`times` times `batch` products of matrices (m,k) and (k,n), as they lie in memory."""

    batch: int
    m: int
    k: int
    n: int
    times: int
    transposed: tuple[bool, bool]


class Products:
    """Matrix products ready to run, all of them in every lane."""

    def __init__(self, products: Iterable[Product]) -> None:
        self._operands = []
        for batch, m, k, n, times, (left, right) in products:
            pair = _matrices(batch, m, k, left), _matrices(batch, k, n, right)
            mx.eval(pair)
            self._operands.append((*pair, times))

    def run(self) -> None:
        lanes = device.lane_count()
        with device.side_by_side(lanes):
            for a, b, times in self._operands:
                mx.eval(
                    [device.by_parts(mx.matmul, [a] * lanes, [b] * lanes) for _ in range(times)]
                )


def _matrices(batch: int, rows: int, columns: int, transposed: bool) -> mx.array:
    shape = (columns, rows) if transposed else (rows, columns)
    matrices = mx.random.normal(shape if batch == 1 else (batch, *shape))
    return matrices.swapaxes(-1, -2) if transposed else matrices


def training_products(config: ModelConfig, B: int, S: int, T: int) -> list[Product]:
    """Every product of a training step on B pairs of S and T tokens, forward and backward."""
    forward = [
        *_encoder(config, B, S),
        *_memory(config, B, S),
        *_decoder(config, B, T, past=T, S=S),
    ]
    return [product for each in forward for product in (each, *_gradients(each))]


def search_products(config: ModelConfig, B: int, K: int, S: int, length: int) -> list[Product]:
    """Every product of a search of `length` steps, a step looking back on half of them.

    As the search does it on a CPU: with one hypothesis in the first step, and matrices laid out
    column by column.
    """
    first = _decoder(config, B, 1, past=K, S=S)
    step = _decoder(config, B, K, past=K * max(1, length // 2), S=S)
    steps = [product._replace(times=product.times * (length - 1)) for product in step]
    products = [*_encoder(config, B, S), *_memory(config, B, S), *first, *steps]
    return [p._replace(transposed=(False, False)) if p.batch == 1 else p for p in products]


def _gradients(forward: Product) -> tuple[Product, Product]:
    """Of a product a b: dy b^T and, laid out as b is, a^T dy."""
    batch, m, k, n, times, (_, right) = forward
    rows, columns = (n, k) if right else (k, n)
    return (
        Product(batch, m, n, k, times, (False, not right)),
        Product(batch, rows, m, columns, times, (True, False)),
    )


def _encoder(config: ModelConfig, B: int, S: int) -> list[Product]:
    N = config.encoder_layers
    return [*_self_attention(config, B, S, S, N), *_feed_forward(config, B * S, N)]


def _memory(config: ModelConfig, B: int, S: int) -> list[Product]:
    """The keys and values of cross-attention."""
    return [
        _linear(B * S, config.d_model, config.h * sum(config.head_sizes), config.decoder_layers)
    ]


def _decoder(config: ModelConfig, B: int, T: int, past: int, S: int) -> list[Product]:
    """T queries a sentence, which see `past` positions and S of the source; and their logits."""
    d, h, N = config.d_model, config.h, config.decoder_layers
    d_k, d_v = config.head_sizes
    return [
        *_self_attention(config, B, T, past, N),
        _linear(B * T, d, h * d_k, N),
        *_attention(config, B, T, S, N),
        _linear(B * T, h * d_v, d, N),
        *_feed_forward(config, B * T, N),
        _linear(B * T, d, config.target_size, 1),
    ]


def _self_attention(config: ModelConfig, B: int, T: int, past: int, N: int) -> list[Product]:
    d, h = config.d_model, config.h
    d_k, d_v = config.head_sizes
    return [
        _linear(B * T, d, h * (2 * d_k + d_v), N),
        *_attention(config, B, T, past, N),
        _linear(B * T, h * d_v, d, N),
    ]


def _attention(config: ModelConfig, B: int, T: int, S: int, N: int) -> list[Product]:
    d_k, d_v = config.head_sizes
    return [
        Product(B * config.h, T, d_k, S, N, (False, True)),
        Product(B * config.h, T, S, d_v, N, (False, False)),
    ]


def _feed_forward(config: ModelConfig, rows: int, N: int) -> list[Product]:
    d, d_ff = config.d_model, config.d_ff
    return [_linear(rows, d, d_ff, N), _linear(rows, d_ff, d, N)]


def _linear(rows: int, d_in: int, d_out: int, N: int) -> Product:
    return Product(1, rows, d_in, d_out, N, (False, True))
