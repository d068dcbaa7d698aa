"""Small texts that each kind of model must learn: one file, one command."""

import json
import math
import random
from pathlib import Path

import pytest

from mlx_transformer import load, load_completer, load_text_encoder
from mlx_transformer.__main__ import main

pytestmark = pytest.mark.slow

NAMES = ["anna", "ben", "carl", "dora", "emil", "fritz", "gina", "hans"]
DEEDS = [("sees", "knows"), ("calls", "hears"), ("pays", "thanks"), ("leads", "follows")]
TOKENS = 9  # words of a sentence, and its end
RECIPE = """
[data]
text = "text.txt"
max_length = 32

[tokenizer]
vocab_size = 110

[model]
preset = "tiny"
d_ff = 128
norm = "pre"
dropout = 0.0
label_smoothing = 0.0
scale_embedding = false
positions = "learned"
{model}

[training]
max_steps = {steps}
batch_tokens = 512
schedule = "cosine"
learning_rate = 0.005
warmup = 30
average_last = 1

[validation]
every = 1000
metric = "exact"
sentences = 40
beam = 1
"""


def sentence(draw: random.Random) -> str:
    """It says a thing twice: every word can be told from the others."""
    (a, b), (does, did) = draw.choices(NAMES, k=2), draw.choice(DEEDS)
    return f"{a} {does} {b} and {b} {did} {a} ."


def trained(folder: Path, model: str, steps: int) -> tuple[Path, dict]:
    """The model, and what its test said"""
    draw = random.Random(0)
    (folder / "text.txt").write_text("".join(sentence(draw) + "\n" for _ in range(4000)))
    (folder / "mine.toml").write_text(RECIPE.format(model=model, steps=steps))
    assert main(["train", str(folder / "mine.toml"), "--out", str(folder / "run")]) == 0
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    return folder / "run" / "model", metrics[-1]


def test_a_decoder_alone_learns_to_write(tmp_path: Path) -> None:
    model, report = trained(tmp_path, "encoder_layers = 0", 200)
    own = math.exp(math.log(len(NAMES) ** 2 * len(DEEDS)) / TOKENS)  # of who knows the grammar
    assert report["split"] == "test" and report["perplexity"] < 1.1 * own
    completer = load_completer(model)
    for prompt in ("anna pays carl", "hans leads dora", "ben sees emil"):
        giver, does, taker = prompt.split()
        found = completer.complete(prompt, beam=1)
        assert prompt + found.text == f"{prompt} and {taker} {dict(DEEDS)[does]} {giver} ."


def test_an_encoder_alone_learns_to_fill_gaps(tmp_path: Path) -> None:
    model, _ = trained(tmp_path, 'decoder_layers = 0\nword_head = "transform"', 250)
    encoder, draw = load_text_encoder(model), random.Random(1)
    right, texts = 0, [sentence(draw) for _ in range(100)]
    for text in texts:
        words = text.split()
        place = draw.randrange(len(words) - 1)
        gap = " ".join([*words[:place], "<mask>", *words[place + 1 :]])
        right += encoder.fill(gap, 1)[0][0].word == words[place]
    # Who knows what kind of word is missing, but not which, is right in 29 of 100.
    assert right > 90


def test_both_halves_learn_to_restore_spans(tmp_path: Path) -> None:
    model, report = trained(tmp_path, "", 400)
    assert report["exact"] > 90  # who cannot look a word up in the other half: 38
    found = load(model).translate("anna pays carl and carl<extra_id_0> anna .", beam=1)
    assert found.text == "<extra_id_0> thanks"
