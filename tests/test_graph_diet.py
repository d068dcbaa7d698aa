"""What a step costs before any arithmetic: nodes of its graph, and waits for the device.

True on any device: a kernel has to be launched and every node kept account of, and while the host
waits it prepares nothing for the device to do next. The bounds are hardly above what there is now:
a change that exceeds them must be worth it and say so here.

`python -m tests.test_graph_diet` prints the counts beside those of a plain training loop around
`mlx.nn.Transformer`, and those of a GPU's branches.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_transformer import device
from mlx_transformer.config import preset
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus, Sentences
from mlx_transformer.decoding.batch import SearchBatch
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.search import search
from mlx_transformer.decoding.step import SearchStep
from mlx_transformer.measuring.benchmark import search_products, training_products
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig, ValidationConfig
from mlx_transformer.training.checkpoint import Progress
from mlx_transformer.training.run_directory import RunDirectory
from mlx_transformer.training.step import initial_state
from mlx_transformer.training.trainer import Hooks, Trainer
from tests.launches import copies

# The layers of `base`, narrow: the graph is the same and runs in no time.
CONFIG = replace(preset("tiny"), encoder_layers=6, decoder_layers=6)
SENTENCES, LENGTH = 8, 12


# Primitives that only look at the same memory in another way.
VIEWS = {"Broadcast", "ExpandDims", "Split", "Squeeze", "Transpose", "Unflatten", "View"}
# Those that do so or copy, which the graph does not show (see launches.py), or only copy.
MOVES = {"Concatenate", "Contiguous", "Flatten", "Reshape", "Slice"}


@dataclass
class Watch:
    launched: list[Counter] = field(default_factory=list)  # primitives of each graph evaluated
    waits: int = 0  # of the host for the device

    @property
    def nodes(self) -> int:
        """Of the graph of a usual step: the first of a search encodes as well, some make room."""
        return int(median(graph.total() for graph in self.steps))

    @property
    def kernels(self) -> int:
        """Nodes that compute or copy."""
        return int(median(sum(graph[p] for p in graph.keys() - VIEWS) for graph in self.steps))

    @property
    def computing(self) -> int:
        """Nodes that compute."""
        views = VIEWS | MOVES
        return int(median(sum(graph[p] for p in graph.keys() - views) for graph in self.steps))

    @property
    def steps(self) -> list[Counter]:
        return [graph for graph in self.launched if graph]


def products(watch: Watch) -> int:
    """Matrix products of the last graph launched."""
    return sum(watch.steps[-1][name] for name in ("Matmul", "AddMM"))


def primitives(*trees: Any) -> Counter:
    """What lies between arrays evaluated already and these, by name."""
    arrays = [x for _, x in tree_flatten(trees) if isinstance(x, mx.array)]
    graph = io.StringIO()
    mx.export_to_dot(graph, *arrays)
    return Counter(re.findall(r'\[label ="(\w+)[^"]*", shape=rectangle\]', graph.getvalue()))


@contextmanager
def watching() -> Iterator[Watch]:
    """Count what is launched and waited for inside."""
    watch = Watch()

    def launch(*trees: Any) -> None:
        watch.launched.append(primitives(*trees))

    def wait(*_: Any) -> None:
        watch.waits += 1

    def read(x: Any, *_: Any) -> None:
        watch.waits += isinstance(x, mx.array)

    with ExitStack() as stack:

        def before(owner: object, name: str, note: Callable[..., None]) -> None:
            """Have the arguments of every call noted first."""
            function = getattr(owner, name)

            def call(*args: Any, **options: Any) -> Any:
                note(*args)
                return function(*args, **options)

            stack.enter_context(patch.object(owner, name, call))

        before(mx, "async_eval", launch)
        before(mx, "eval", launch)
        before(mx, "eval", wait)
        before(mx, "synchronize", wait)
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
            before(mx.array, name, read)
        for name in ("array", "asarray"):
            before(np, name, read)
        yield watch


def training(steps: int) -> Watch:
    """A real run of `Trainer` that logs at its end only."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 99, (2, 8 * SENTENCES, LENGTH - 1))
    sides = [Sentences.from_lists(side.tolist()) for side in ids]
    corpus = ParallelCorpus(*sides, CONFIG.vocab_size, CONFIG.target_size, [], [])
    config = TrainingConfig(max_steps=steps, log_every=steps, save_every=steps)
    model = Transformer(CONFIG)
    reporter: Any = SimpleNamespace(stepped=lambda step: None, trained=lambda report: None)
    hooks = Hooks(reporter, None, lambda model: None, SimpleNamespace(received=0))
    state = initial_state(model, config)
    mx.eval(state)
    with TemporaryDirectory() as run, watching() as watch:
        trainer = Trainer(
            model.config,
            state,
            Batches(corpus, CONFIG, SENTENCES * LENGTH),
            config,
            ValidationConfig(),
            RunDirectory(Path(run)),
            hooks,
            mx.distributed.init(),
        )
        trainer.train(Progress())
    return watch


def searching(beam: int, length: int) -> Watch:
    """A real search of so many steps."""
    model = Transformer(CONFIG)
    mx.eval(model.parameters())
    options = SearchOptions(beam=beam, min_tokens=length, max_tokens=length)
    with watching() as watch:
        search(model, [[5] * (LENGTH - 1) + [CONFIG.eos_id]] * SENTENCES, options)
    return watch


class PlainModel(nn.Module):
    """The same size out of MLX's own parts, as its examples do it."""

    def __init__(self) -> None:
        super().__init__()
        c = CONFIG
        self.words = nn.Embedding(c.vocab_size, c.d_model)
        self.positions = nn.SinusoidalPositionalEncoding(c.d_model)
        self.transformer = nn.Transformer(
            c.d_model, c.h, c.encoder_layers, c.decoder_layers, c.d_ff, c.dropout
        )

    def __call__(self, source: mx.array, target: mx.array) -> mx.array:
        x, y = (
            self.words(ids) * CONFIG.d_model**0.5 + self.positions(mx.arange(ids.shape[1]))
            for ids in (source, target)
        )
        padding = mx.where(source == CONFIG.pad_id, -mx.inf, 0.0)[:, None, None]
        causal = nn.MultiHeadAttention.create_additive_causal_mask(target.shape[1])
        return self.words.as_linear(self.transformer(x, y, padding, causal, padding))


def plain_training(steps: int) -> Watch:
    """The compiled training loop of MLX's documentation."""
    model = PlainModel()
    optimizer = optim.Adam(1e-4, betas=[0.9, 0.98], eps=1e-9, bias_correction=True)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state, mx.random.state]
    mx.eval(state)

    def loss_of(source: mx.array, target: mx.array, expected: mx.array) -> mx.array:
        losses = nn.losses.cross_entropy(
            model(source, target), expected, label_smoothing=CONFIG.label_smoothing
        )
        real = expected != CONFIG.pad_id
        return (losses * real).sum() / real.sum()

    differentiate = nn.value_and_grad(model, loss_of)

    def update(*batch: mx.array) -> mx.array:
        loss, gradients = differentiate(*batch)
        optimizer.update(model, gradients)
        return loss

    step = mx.compile(update, inputs=state, outputs=state)
    ids = mx.full((SENTENCES, LENGTH), 5)
    with watching() as watch:
        for _ in range(steps):
            loss = step(ids, ids, ids)
            mx.eval(state, loss)
    return watch


@contextmanager
def one_lane() -> Iterator[None]:
    """As on a GPU: the lanes of a CPU have a graph each, and launch short steps in parts."""
    with patch.multiple(device, CORES=1, LANES=1), patch.object(device, "launch_early"):
        yield


@contextmanager
def on_metal() -> Iterator[Counter]:
    """The branches of a GPU, with one node for each operation that is one kernel there and has no
    gradient here; and how many masks Metal's attention would copy before it reads them.

    The results are not what a model computes: only the graph counts.
    """
    copied: Counter = Counter()

    def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any) -> mx.array:
        copied["masks"] += isinstance(mask, mx.array) and 1 == mask.shape[1] < q.shape[1]
        return mx.depends([q], [k, v, *([mask] if isinstance(mask, mx.array) else [])])[0]

    def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
        return mx.depends([x], [weight, bias])[0]

    with (
        device.as_gpu(),
        patch.object(mx.fast, "scaled_dot_product_attention", attention),
        patch.object(mx.fast, "layer_norm", layer_norm),
    ):
        yield copied


def training_copies() -> int:
    """Of a GPU's forward and backward pass through the model."""
    model = Transformer(CONFIG)
    mx.eval(model.parameters())
    ids = mx.full((SENTENCES, LENGTH), 5)

    def output(parameters: Any) -> mx.array:
        model.update(parameters)
        return model.hidden(ids, ids, mx.random.key(0)).sum()

    with device.as_gpu():
        return copies(lambda: mx.grad(output)(model.parameters())).total()


def search_copies(beam: int) -> int:
    """Of a step of a GPU's search, masks included."""
    model = Transformer(CONFIG)
    mx.eval(model.parameters())
    sources = [[5] * (LENGTH - 1) + [CONFIG.eos_id]] * SENTENCES
    with on_metal() as copied, device.uncompiled():
        batch = SearchBatch(SearchStep(model, SearchOptions(beam=beam)), sources)
        mx.eval(batch.step())
        copied.clear()
        return copies(batch.step).total() + copied["masks"]


@pytest.fixture(autouse=True)
def always_one_lane() -> Iterator[None]:
    with one_lane():
        yield


def test_graphs_and_waits_are_counted():
    x = mx.zeros((2, 3))
    mx.eval(x)
    assert primitives([mx.exp(x), {"y": mx.sin(x.T)}]) == {"Exp": 1, "Transpose": 1, "Sin": 1}
    with watching() as watch:
        mx.async_eval(mx.exp(x), x)
        assert (watch.launched, watch.waits) == ([{"Exp": 1}], 0)
        mx.eval(x.T)
        assert (watch.nodes, watch.kernels, watch.waits) == (1, 0, 1)
        np.array(x), np.asarray(x), np.zeros(3).tolist()
        float(x[0, 0]), x[0, 0].item(), x.tolist(), bool(x[0, 0])
        assert watch.waits == 7
    mx.eval(x)
    assert watch.waits == 7


@pytest.mark.slow
def test_a_training_step():
    few, more, plain = training(2), training(6), plain_training(2)
    assert more.waits == few.waits  # those at the end of the run
    assert plain.waits == 2
    assert more.nodes <= 3270
    assert more.kernels <= 2250
    # None is computed twice, and q, k and v are one. On a CPU some sums are products as well: the
    # norm of the gradient, and two means in the gradient of every LayerNorm.
    norms = 2 * CONFIG.encoder_layers + 3 * CONFIG.decoder_layers
    limit = training_products(CONFIG, SENTENCES, LENGTH, LENGTH)
    of_model = products(more) - (1 + 2 * norms) * (mx.default_device() == mx.cpu)
    assert of_model == sum(product.times for product in limit) < 0.8 * products(plain)


@pytest.mark.parametrize(("beam", "nodes", "kernels"), [(1, 570, 390), (4, 945, 620)])
def test_a_step_of_a_search(beam, nodes, kernels):
    few, more = searching(beam, 5), searching(beam, 12)
    assert more.waits - few.waits <= 7  # one a step, for a flag of the step before
    assert more.nodes <= nodes
    assert more.kernels <= kernels
    one, two = (search_products(CONFIG, SENTENCES, beam, LENGTH, steps) for steps in (1, 2))
    assert products(more) == sum(p.times for p in two) - sum(p.times for p in one)


def test_copies_are_counted():
    x = mx.zeros((2, 3, 4))
    mx.eval(x)
    assert copies(lambda: x.reshape(6, 4).T) == {}
    assert copies(lambda: mx.exp(x.swapaxes(0, 1)).reshape(6, 4)) == {"Reshape": 1}
    assert copies(lambda: mx.concatenate([x[:1], x])) == {"Concatenate": 2}
    assert copies(lambda: mx.contiguous(x.T)) == {"Sort": 1}
    assert copies(lambda: mx.split(x, 2, axis=2)[0].reshape(6, 2)) == {}
    assert copies(lambda: mx.split(x, 2, axis=2)[0].reshape(12)) == {"Reshape": 1}


def test_a_gpu_copies_no_more_than_it_has_to():
    """Heads are joined after attention, and the gradients of q, k and v before their product; the
    mask of a search is laid out once a step, and a beam looks for the best in a table and in the
    rest that does not fill it."""
    attentions = CONFIG.encoder_layers + 2 * CONFIG.decoder_layers
    gradients = 3 * CONFIG.encoder_layers + 6 * CONFIG.decoder_layers
    masks = 2
    assert training_copies() == attentions + gradients + masks
    assert (search_copies(1), search_copies(4)) == (1, 9)


@pytest.mark.slow
def test_what_a_gpu_launches():
    with device.as_gpu():
        assert training(4).computing <= 1320
    with on_metal():
        assert searching(1, 9).computing <= 130
        assert searching(4, 9).computing <= 155


def report() -> None:
    runs = {
        "training": training,
        "training, mlx.nn.Transformer": plain_training,
        "greedy search": lambda steps: searching(1, steps),
        "beam search": lambda steps: searching(4, steps),
    }
    print(f"{'a step of':30} {'nodes':>6} {'kernels':>8} {'waits':>6}")
    for title, run in runs.items():
        few, more = run(4), run(8)
        waits = (more.waits - few.waits) / 4
        print(f"{title:30} {more.nodes:6,} {more.kernels:8,} {waits:6}")
    print(f"\n{'on a GPU, a step of':30} {'computing':>9} {'copies':>7}")
    with device.as_gpu():
        print(f"{'training':30} {training(4).computing:9,} {training_copies():7,}")
    for title, beam in (("greedy search", 1), ("beam search", 4)):
        with on_metal():
            computing = searching(beam, 9).computing
        print(f"{title:30} {computing:9,} {search_copies(beam):7,}")


if __name__ == "__main__":
    with one_lane():
        report()
