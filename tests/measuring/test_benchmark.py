"""What the benchmark compares with and what it feeds: the products of a step, made-up text."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlx_transformer.config import preset
from mlx_transformer.measuring.benchmark import (
    Product,
    fixed_length_search,
    random_batch,
    random_ids,
    search_products,
    training_products,
    translate,
)
from mlx_transformer.model import Transformer
from tests.parity.torch_reference import TorchTransformer

CONFIG = replace(preset("tiny"), encoder_layers=3, d_ff=96)
B, S, T = 3, 7, 5


def flops(products: list[Product]) -> int:
    return sum(2 * p.batch * p.m * p.k * p.n * p.times for p in products)


def torch_flops(T: int, backward: bool) -> int:
    """Of the same model in PyTorch, with every product of attention spelled out."""
    model = TorchTransformer(CONFIG)
    source, target = (torch.randint(4, 99, (B, length)) for length in (S, T))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(source, target)
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


def test_the_products_of_training_are_those_of_pytorch():
    assert flops(training_products(CONFIG, B, S, T)) == torch_flops(T, backward=True)


def test_the_products_of_a_search_are_those_of_pytorch():
    """K hypotheses that see each other's positions are a sequence of K."""
    alone = torch_flops(1, backward=False)
    assert flops(search_products(CONFIG, B, 1, S, 1)) == alone

    def step(K: int) -> int:
        one, two = (flops(search_products(CONFIG, B, K, S, length)) for length in (1, 2))
        return two - one

    assert step(T) - step(1) == torch_flops(T, backward=False) - alone


@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_of_fixed_length_writes_that_many_tokens(beam):
    config = preset("tiny", vocab_size=20)
    sources = random_ids(config, 5, 8).tolist()
    found = translate(fixed_length_search(Transformer(config), 9, beam), sources)
    assert [len(ids) for ids in found] == [9] * 5
    assert not any({config.pad_id, config.start_id, config.eos_id} & set(ids) for ids in found)


@pytest.mark.parametrize("specials", [(0, 1, 2), (19, None, 3), (19, 19, 0)])
def test_random_words_are_words(specials):
    pad, start, eos = specials
    config = preset("tiny", vocab_size=20, pad_id=pad, start_id=start, eos_id=eos)
    source, target, expected = (np.array(x) for x in random_batch(config, 50, 6))
    assert (source[:, -1] == eos).all() and (expected[:, -1] == eos).all()
    words = set(range(20)) - set(specials)
    assert set(source[:, :-1].ravel().tolist()) == words
    assert (target[:, 1:] == expected[:, :-1]).all()
    assert (target[:, 0] == (pad if start is None else start)).all()
