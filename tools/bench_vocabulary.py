"""A step of search over a large vocabulary beside its bare matrix products, in one run.

The weights are random, of NLLB-200's size unless flags say otherwise. What is printed are medians,
and what a step takes in units of its products.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from mlx_transformer import ModelConfig, Transformer  # before mlx: it brings the fast BLAS

import mlx.core as mx  # isort: skip
import mlx.nn as nn

from mlx_transformer import device
from mlx_transformer.blocks import lay_out_for_search
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search

SHORT, LONG = 4, 14  # tokens: a step is the difference of two searches, so the encoder falls out


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
    lay_out_for_search(model)
    mx.eval(model.parameters())
    print(f"{args.vocabulary:,} words, d_model {args.d_model}, {args.layers} decoder layers")
    for beam in (1, 4):
        steps, bare = [], []
        for _ in range(args.rounds):  # in turn: what disturbs one disturbs both
            steps.append(step_seconds(model, beam))
            bare.append(seconds(partial(compute_products, model, beam)))
        report(f"a step with beam {beam}" if beam > 1 else "a greedy step", steps, bare)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=256_206, metavar="V")
    parser.add_argument("--d-model", type=int, default=1024, metavar="D")
    parser.add_argument("--layers", type=int, default=12, metavar="N", help="of the decoder")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    return parser.parse_args()


def step_seconds(model: Transformer, beam: int) -> float:
    source = [*range(10, 30), model.config.eos_id]

    def run(length: int) -> None:
        options = SearchOptions(beam=beam, max_tokens=length, min_tokens=length)
        search(model, [source], options)

    return (seconds(lambda: run(LONG)) - seconds(lambda: run(SHORT))) / (LONG - SHORT)


def compute_products(model: Transformer, rows: int) -> None:
    """x W^T for every matrix that a step of so many hypotheses reads"""
    matrices = [model[model.config.output_matrix].weight]
    for layer in model.decoder.layers:
        for path, module in layer.named_modules():
            if isinstance(module, nn.Linear) and path != "cross_attention.kv":
                matrices.append(module.weight)
    mx.eval([device.linear(mx.ones((1, rows, w.shape[1])), w, None) for w in matrices])


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(what: str, times: list[float], bare: list[float]) -> None:
    step, product = median(times), median(bare)
    print(
        f"{what}: {step * 1e3:.0f} ms, its products {product * 1e3:.0f} ms, {step / product:.2f}x"
    )


if __name__ == "__main__":
    main()
