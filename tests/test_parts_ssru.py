"""The SSRU of `parts`: its parallel form, its gradients."""

import mlx.core as mx
import numpy as np
import torch

from mlx_transformer.parts import SSRU, running_cells

B, T, D = 2, 11, 8


def test_all_positions_at_once_are_one_after_the_other() -> None:
    generator = np.random.default_rng(0)
    for length in (1, 2, 3, 8, 13):
        forget = generator.uniform(size=(B, length, D)).astype("f4")
        taken = generator.normal(size=(B, length, D)).astype("f4")
        cells, expected = np.zeros((B, D)), []
        for t in range(length):
            cells = forget[:, t] * cells + taken[:, t]
            expected.append(cells)
        found = np.array(running_cells(mx.array(forget), mx.array(taken)))
        np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-5)


def test_gradients_are_those_of_pytorch() -> None:
    generator = np.random.default_rng(1)
    x, w, w_f, upstream = (
        generator.normal(size=shape).astype("f4")
        for shape in ((B, T, D), (D, D), (D, D), (B, T, D))
    )
    b_f = generator.normal(size=D).astype("f4")

    layer = SSRU(D)
    weights = {"input": {"weight": mx.array(w)}}
    weights["forget"] = {"weight": mx.array(w_f), "bias": mx.array(b_f)}
    layer.update(weights)

    def loss(x: mx.array, parameters: dict) -> mx.array:
        layer.update(parameters)
        return (layer(x, None) * mx.array(upstream)).sum()

    ours = mx.grad(loss, argnums=(0, 1))(mx.array(x), layer.parameters())

    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w, w_f, b_f)]
    tx, tw, tw_f, tb_f = theirs
    cells, out = torch.zeros(B, D), []
    for t in range(T):
        forget = torch.sigmoid(tx[:, t] @ tw_f.T + tb_f)
        cells = forget * cells + (1 - forget) * (tx[:, t] @ tw.T)
        out.append(torch.relu(cells))
    (torch.stack(out, dim=1) * torch.tensor(upstream)).sum().backward()
    found = [
        ours[0],
        *(
            ours[1][a][b]
            for a, b in (("input", "weight"), ("forget", "weight"), ("forget", "bias"))
        ),
    ]
    for mine, tensor in zip(found, theirs, strict=True):
        np.testing.assert_allclose(np.array(mine), tensor.grad.numpy(), atol=2e-5)
