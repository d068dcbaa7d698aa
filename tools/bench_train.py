"""Training side by side with PyTorch: same weights, same batches of Multi30k, same optimiser."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from bench_sides import (
    THREADS,
    Side,
    Works,
    in_turn,
    parser,
    prepared_multi30k,
    serve,
    stop,
    table,
    where_and_when,
    write_section,
)

if TYPE_CHECKING:
    from torch import nn

BATCH_TOKENS = 2048
NOTE = (
    "Multi30k in batches of at most 2,048 tokens a side, vocabulary {0.vocabulary:,}, Adam; target "
    "tokens a second. PyTorch is eager `nn.Transformer` with the same weights and dropout. The "
    "limit is the time of the step's matrix products alone, measured in the same run."
)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--preset", nargs="+", default=["base", "small"], help="(default: both)")
    options.add_argument("--steps", type=int, default=5, help="steps a round (default: 5)")
    args = options.parse_args()
    if args.worker:
        serve({"mlx": load_mlx, "torch": load_torch}, *args.worker)
        return
    if args.quick:
        args.preset, args.vocabulary, args.steps, args.rounds = ["tiny"], 300, 2, 1

    rows, ratios = [], []
    with TemporaryDirectory() as temporary:
        prepared = prepared_multi30k(args.data, Path(temporary), args.vocabulary)
        for preset in args.preset:
            workspace = Path(temporary) / preset
            workspace.mkdir()
            tokens = prepare_workspace(prepared, workspace, preset, args.steps)
            ours, theirs, limit = compare(workspace, args.rounds, preset)
            rows.append(
                [
                    f"`{preset}`",
                    f"{tokens / ours:,.0f}",
                    f"{tokens / theirs:,.0f}",
                    f"{theirs / ours:.2f}x",
                    f"{limit / ours:.0%}",
                ]
            )
            ratios.append(f"{preset} {theirs / ours:.2f}x PyTorch, {limit / ours:.0%} of the limit")
    head = ["train", "this project", "PyTorch", "ratio", "share of the limit"]
    report = "\n\n".join([where_and_when("torch"), NOTE.format(args), table(head, rows)])
    print(report)
    if args.write:
        write_section(args.write, "Training", report)
    print("; ".join(ratios))


def prepare_workspace(prepared: Path, workspace: Path, preset: str, steps: int) -> int:
    """Random weights and the first batches for both sides; returns the batches' target tokens."""
    import mlx.core as mx

    from mlx_transformer import config
    from mlx_transformer.convert.export_torch import export_torch
    from mlx_transformer.data.batches import Batches
    from mlx_transformer.data.corpus import ParallelCorpus
    from mlx_transformer.model import Transformer
    from mlx_transformer.storage import save_model

    corpus = ParallelCorpus.open(prepared, "train")
    mx.random.seed(0)
    model = Transformer(config.preset(preset, vocab_size=corpus.source_vocab_size))
    save_model(model, workspace)
    (workspace / "torch").mkdir()
    export_torch(model, workspace / "torch")
    batches = Batches(corpus, model.config, BATCH_TOKENS)
    chosen = [batches.read(plan) for plan in batches.epoch(0)[:steps]]
    for i, batch in enumerate(chosen):
        np.savez(workspace / f"batch-{i}", batch.source, batch.target_in, batch.target_out)
    return sum(batch.target_tokens for batch in chosen)


def read_batches(workspace: Path) -> list[list[np.ndarray]]:
    """(source, target input, target output) of each batch"""
    return [list(np.load(path).values()) for path in sorted(workspace.glob("batch-*.npz"))]


def compare(workspace: Path, rounds: int, preset: str) -> list[float]:
    """Seconds of a round of steps: ours, PyTorch's, and that of our matrix products alone."""
    with Side(__file__, "mlx", workspace) as ours, Side(__file__, "torch", workspace) as theirs:
        a, b = ours.ask("loss").result, theirs.ask("loss").result
        if not math.isclose(a, b, rel_tol=1e-4):
            stop(f"the two sides do not compute the same loss: {a} and {b}")
        works = [(ours, "train"), (theirs, "train"), (ours, "products")]
        return [answer.seconds for answer in in_turn(works, rounds, f"train {preset}")]


def load_mlx(workspace: Path) -> Works:
    import mlx.core as mx

    from mlx_transformer import device
    from mlx_transformer.measuring.benchmark import Product, Products, Training, training_products
    from mlx_transformer.storage import load_model
    from mlx_transformer.training.loss import OutputLoss

    model = load_model(workspace)
    config = model.config
    batches = [(mx.array(s), mx.array(t), mx.array(e)) for s, t, e in read_batches(workspace)]
    source, target, expected = batches[0]
    hidden = model.hidden(source, target).reshape(-1, config.d_model)
    weight = model[config.output_matrix].weight
    loss = OutputLoss(config)(hidden, weight, None, expected.reshape(-1))
    mean_loss = (loss.smoothed / loss.tokens).item()

    products: list[Product] = []
    for source, target, _ in batches:
        (B, S), T = source.shape, target.shape[1]
        products += training_products(config, -(-B // device.lane_count()), S, T)  # of each lane
    return {
        "loss": lambda: mean_loss,
        "train": Training(model, batches).run,
        "products": Products(products).run,
    }


def load_torch(workspace: Path) -> Works:
    import torch
    from torch.nn.functional import cross_entropy

    from mlx_transformer.convert.torch_example import load

    torch.set_num_threads(THREADS)
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    model = load(workspace / "torch").to(device)
    drop_as_in_the_paper(model.transformer, model.config.dropout)
    adam = torch.optim.Adam(model.parameters(), lr=1e-6, betas=(0.9, 0.98), eps=1e-9)
    batches = [
        [torch.from_numpy(array).long().to(device) for array in batch]
        for batch in read_batches(workspace)
    ]

    def loss(source: torch.Tensor, target: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        logits = model(source, target).flatten(0, 1)
        smoothing, pad = model.config.label_smoothing, model.config.pad_id
        return cross_entropy(
            logits, expected.flatten(), ignore_index=pad, label_smoothing=smoothing
        )

    def train() -> float:
        for batch in batches:
            adam.zero_grad()
            value = loss(*batch)
            value.backward()
            adam.step()
        return value.item()  # which waits for the device

    mean_loss = loss(*batches[0]).item()
    model.train()
    return {"loss": lambda: mean_loss, "train": train}


def drop_as_in_the_paper(transformer: "nn.Transformer", rate: float) -> None:
    """After the embeddings, not in attention weights or within the feed-forward nets: PyTorch
    shall do what this project does, no less and no more."""
    from torch import nn
    from torch.nn.functional import dropout

    for module in transformer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout.p = 0.0
    transformer.register_forward_pre_hook(
        lambda module, embedded: tuple(dropout(x, rate, module.training) for x in embedded)
    )


if __name__ == "__main__":
    main()
