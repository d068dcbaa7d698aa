"""Search, scoring and the loss over a large vocabulary beside their bare matrix products.

The weights are random, of NLLB-200's size unless flags say otherwise. What is printed are medians
of one run, and what each takes in units of its products.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from mlx_transformer import ModelConfig, Transformer  # before mlx: it brings the fast BLAS

import mlx.core as mx  # isort: skip
import mlx.nn as nn

from mlx_transformer import device
from mlx_transformer.blocks import lay_out_for_search
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_pairs
from mlx_transformer.decoding.search import search
from mlx_transformer.training.loss import OutputLoss

SHORT, LONG = 4, 14  # tokens: a step is the difference of two searches, so the encoder falls out
PAIRS, LENGTH = 16, 32  # that are scored, and the tokens of each side
TOKENS = 512  # of the loss


def main() -> None:
    args = parse()
    config = ModelConfig(
        vocab_size=args.vocabulary,
        d_model=args.d_model,
        d_ff=4 * args.d_model,
        h=16,
        encoder_layers=1,
        decoder_layers=args.layers,
        norm="pre",
    )
    mx.random.seed(0)
    model = Transformer(config)
    words = model[config.output_matrix].weight
    mx.eval(model.parameters())
    print(f"{args.vocabulary:,} words, d_model {args.d_model}, {args.layers} decoder layers")
    # Of the model as it is trained first: to search it is laid out otherwise.
    loss, bare = partial(compute_loss, config, words), partial(compute_products_of_loss, words)
    compare("the loss and its gradients", timed(loss), timed(bare), args.rounds)
    del words, loss, bare
    mx.clear_cache()  # gigabytes
    lay_out_for_search(model)
    for name, beam in (("a greedy step", 1), ("a step with beam 4", 4)):
        step = partial(step_seconds, model, beam)
        compare(name, step, timed(partial(compute_products_of_step, model, beam)), args.rounds)
    scoring, bare = partial(score, model), partial(compute_products_of_scoring, model)
    compare("scoring", timed(scoring), timed(bare), args.rounds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=256_206, metavar="V")
    parser.add_argument("--d-model", type=int, default=1024, metavar="D")
    parser.add_argument("--layers", type=int, default=12, metavar="N", help="of the decoder")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    return parser.parse_args()


Seconds = Callable[[], float]


def timed(work: Callable[[], None]) -> Seconds:
    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return seconds


def compare(what: str, work: Seconds, bare: Seconds, rounds: int) -> None:
    """In turn: what disturbs one disturbs both. The first round, which compiles, does not count."""
    taken = [(work(), bare()) for _ in range(rounds + 1)][1:]
    whole, products = (median(column) for column in zip(*taken, strict=True))
    print(
        f"{what}: {whole * 1e3:.0f} ms, its products {products * 1e3:.0f} ms, "
        f"{whole / products:.2f}x"
    )


# Search


def step_seconds(model: Transformer, beam: int) -> float:
    source = [*range(10, 30), model.config.eos_id]

    def run(length: int) -> None:
        options = SearchOptions(beam=beam, max_tokens=length, min_tokens=length)
        search(model, [source], options)

    return (timed(partial(run, LONG))() - timed(partial(run, SHORT))()) / (LONG - SHORT)


def compute_products_of_step(model: Transformer, rows: int) -> None:
    """x W^T for every matrix that a step of so many hypotheses reads"""
    mx.eval([product(w, rows) for w in matrices(model.decoder, "cross_attention.kv")])
    mx.eval(product(model[model.config.output_matrix].weight, rows))


# Scoring


def score(model: Transformer) -> None:
    pairs = [[*range(10 + i, 9 + i + LENGTH), model.config.eos_id] for i in range(PAIRS)]
    score_pairs(model, pairs, pairs)


def compute_products_of_scoring(model: Transformer) -> None:
    both = [*matrices(model.encoder), *matrices(model.decoder)]
    mx.eval([product(w, PAIRS * LENGTH) for w in both])
    mx.eval(product(model[model.config.output_matrix].weight, PAIRS * LENGTH))


# The loss, in lanes as in training


def compute_loss(config: ModelConfig, words: mx.array) -> None:
    targets = mx.arange(4, 4 + TOKENS) % config.vocab_size
    hidden = mx.ones((TOKENS, config.d_model))
    in_lanes(partial(_loss, config, words), hidden, targets)


def _loss(config: ModelConfig, words: mx.array, hidden: mx.array, targets: mx.array) -> object:
    def smoothed(hidden: mx.array, words: mx.array) -> mx.array:
        return OutputLoss(config).differentiable(hidden, words, None, targets).smoothed

    return mx.value_and_grad(smoothed, argnums=(0, 1))(hidden, words)


def compute_products_of_loss(words: mx.array) -> None:
    """To the logits, from their gradients to those of the words, and back to the decoder"""
    in_lanes(partial(_products_of_loss, words), mx.ones((TOKENS, words.shape[1])))


def _products_of_loss(words: mx.array, hidden: mx.array) -> object:
    logits = hidden @ words.T
    return logits.T @ hidden, logits @ words


def in_lanes(work: Callable[..., object], *rows: mx.array) -> None:
    lanes = device.lane_count()
    with device.side_by_side(lanes):
        mx.eval(device.by_rows(work, lanes, *rows))


# Products


def matrices(stack: nn.Module, *but: str) -> Iterator[mx.array]:
    for layer in stack.layers:
        for path, module in layer.named_modules():
            if isinstance(module, nn.Linear) and path not in but:
                yield module.weight


def product(weight: mx.array, rows: int) -> mx.array:
    return device.linear(mx.ones((1, rows, weight.shape[1])), weight, None)


if __name__ == "__main__":
    main()
