"""Two processes with half the rows each train as one with all of them."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.training.tasks import metrics, overrides, tiny_task, train

# One process' part: 20 steps on its rows of the batches, and the weights of rank 0 to a file.
SCRIPT = """
import sys
import mlx_transformer
import mlx.core as mx
from mlx_transformer.config import preset
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus, Sentences
from mlx_transformer.model import Transformer
from mlx_transformer.recipes import TrainingConfig
from mlx_transformer.training.step import TrainStep, initial_state
import numpy as np

# No attention bias: its gradient for keys is pure rounding error, which Adam would enlarge.
config = preset("tiny", vocab_size=50, dropout=0.0, attention_bias=False)
rng = np.random.default_rng(0)
sides = [Sentences.from_lists(rng.integers(4, 50, rng.integers(3, 12)) for _ in range(200))
         for _ in range(2)]
corpus = ParallelCorpus(*sides, 50, 50, [], [])
group = mx.distributed.init()
batches = Batches(corpus, config, 300, rank=group.rank(), size=group.size()).stream()
training = TrainingConfig(warmup=100)
mx.random.seed(0)
model = Transformer(config)
step = TrainStep(model.config, training, group)
state = step.pack(initial_state(model, training))
losses = []
for _ in range(20):
    batch = next(batches)
    arrays = [mx.array(ids) for ids in (batch.source, batch.target_in, batch.target_out)]
    state, metrics = step(state, [tuple(arrays)])
    mx.eval(state, metrics)
    losses.append(metrics.loss / metrics.tokens)
if group.rank() == 0:
    arrays = step.unpack(state)["parameters"] | {"losses": mx.stack(losses)}
    mx.savez(sys.argv[1], **arrays)
"""


def launch(processes: int, *args: object) -> subprocess.CompletedProcess[str]:
    launcher = [Path(sys.executable).with_name("mlx.launch"), "--backend", "ring", "-n", processes]
    prefix = launcher if processes > 1 else []
    return subprocess.run(
        [*map(str, prefix), sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_two_processes_with_half_the_batch_equal_one_with_all_of_it(tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(SCRIPT)
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.npz"
        result = launch(processes, script, out)
        assert out.exists(), result.stdout + result.stderr
        found.append(mx.load(str(out)))
    one, two = found
    assert np.allclose(one["losses"], two["losses"], rtol=1e-5)
    assert np.ptp(one["losses"]) > 0.1  # something was learned meanwhile
    for name in one:
        assert np.allclose(one[name], two[name], atol=2e-5), name


@pytest.mark.slow
def test_the_command_trains_on_two_processes_and_the_first_writes(tmp_path):
    recipe = tiny_task(tmp_path, dropout=0.0)
    steps = overrides(
        training_max_steps=10, training_save_every=5, validation_every=5, validation_sentences=2
    )
    alone = train(recipe, "--out", tmp_path / "one", *steps)
    assert alone.returncode == 0, alone.stderr
    result = launch(2, "-m", "mlx_transformer", "train", recipe, "--out", tmp_path / "two", *steps)
    assert (tmp_path / "two" / "model" / "model.safetensors").is_file(), result.stderr
    one, two = (
        [record["loss"] for record in metrics(tmp_path / name, "validation")]
        for name in ("one", "two")
    )
    assert len(two) == 2 and np.allclose(one, two, rtol=1e-4)
