"""Model directories made to do harm, from a seed: bombs, lies, escapes, and plain noise."""

import json
import random
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b"
BIG = [2**15, 2**20, 2**24, 2**31 - 1, 2**31, 2**63, 10**9, 10**30, 10**4000]
ODD = [-1, 0, 1, 3, 1.5, -0.0, 1e308, True, None, [], {}, [[]], "1", "", EVIL, "\u202e", "NaN"]

Spoil = Callable[[Path, random.Random], None]


def make(folder: Path, good: Path, count: int, seed: int) -> list[Path]:
    """`count` copies of a good model directory, each spoilt in one or two ways."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        kinds = [SPOILS[number % len(SPOILS)], *draw.sample(SPOILS, draw.randint(0, 1))]
        name = f"{number:03d}-" + "-".join(kind.__name__ for kind in kinds)
        directory = shutil.copytree(good, folder / name)
        for kind in kinds:
            with suppress(Exception), np.errstate(all="ignore"):  # the first may have left nothing
                kind(directory, draw)
        found.append(directory)
    return found


def edit(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def a_huge_number(directory: Path, draw: random.Random) -> None:
    def change(config: dict) -> None:
        whole = [key for key, value in config.items() if type(value) is int]
        config[draw.choice(whole)] = draw.choice(BIG)

    edit(directory / "config.json", change)


def several_huge_numbers(directory: Path, draw: random.Random) -> None:
    for _ in range(4):
        a_huge_number(directory, draw)


def an_odd_value(directory: Path, draw: random.Random) -> None:
    edit(directory / "config.json", lambda c: c.update({draw.choice(list(c)): draw.choice(ODD)}))


def another_choice(directory: Path, draw: random.Random) -> None:
    choices = [
        {"positions": "learned"}, {"positions": "relative"}, {"norm": "pre"}, {"norm_kind": "rms"},
        {"tied_output": False}, {"shared_embeddings": False}, {"quantization": 4},
        {"max_length": 2**24}, {"start_id": None}, {"position_offset": 1000}, {"logit_scale": 1e38},
        {"encoder_layers": 1024}, {"d_k": 1, "d_v": 7}, {"embedding_norm": True},
    ]  # fmt: skip
    edit(directory / "config.json", lambda c: c.update(draw.choice(choices)))


def an_unknown_key(directory: Path, draw: random.Random) -> None:
    edit(directory / "config.json", lambda c: c.update({EVIL * draw.choice([1, 10**4]): 1}))


def no_json(directory: Path, draw: random.Random) -> None:
    texts = ["[" * 10**5, '{"h":' * 10**4, "{}", "[]", "null", "", "\x00" * 99, "9" * 5000]
    path = directory / draw.choice(["config.json", "tokenizer_config.json", "generation.json"])
    path.write_text(draw.choice(texts))


def weights_of(directory: Path) -> dict[str, np.ndarray]:
    return load_file(directory / "model.safetensors")


def a_strange_tensor(directory: Path, draw: random.Random) -> None:
    weights = weights_of(directory)
    name = draw.choice(list(weights))
    bad = weights.pop(name)
    flat = bad.copy().reshape(-1)
    flat[draw.randrange(flat.size)] = draw.choice([np.nan, np.inf, -np.inf, 3e38])
    instead = draw.choice(
        [None, bad.astype(np.int32), bad.astype(np.float64), bad[:0], bad[..., None],
         np.zeros((), np.float32), flat.reshape(bad.shape), bad * np.float32(1e38)]
    )  # fmt: skip
    if instead is not None:
        weights[draw.choice([name, name, name, EVIL + name])] = np.ascontiguousarray(instead)
    save_file(weights, directory / "model.safetensors")


def huge_weights(directory: Path, draw: random.Random) -> None:
    weights = {name: array * np.float32(1e30) for name, array in weights_of(directory).items()}
    save_file(weights, directory / "model.safetensors")


def many_tensors(directory: Path, draw: random.Random) -> None:
    extra = {f"{EVIL}{i}": np.zeros(0, np.float32) for i in range(5000)}
    save_file(weights_of(directory) | extra, directory / "model.safetensors")


def a_lying_header(directory: Path, draw: random.Random) -> None:
    path = directory / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    entry = header[draw.choice([name for name in header if name != "__metadata__"])]
    field = draw.choice(["shape", "data_offsets", "dtype"])
    entry[field] = draw.choice([[0, 2**60], [-1, 4], [2**40, 2**40], "F8", EVIL, None, [1.5], []])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def damaged_bytes(directory: Path, draw: random.Random) -> None:
    path = directory / draw.choice(["model.safetensors", "tokenizer.model", "config.json"])
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 30])):
        content[draw.randrange(min(len(content), 4000))] = draw.randrange(256)
    path.write_bytes(content)


def cut_short(directory: Path, draw: random.Random) -> None:
    path = directory / draw.choice(["model.safetensors", "tokenizer.model", "config.json"])
    path.write_bytes(path.read_bytes()[: draw.choice([0, 1, 7, 8, 100, 5000])])


def a_missing_or_odd_file(directory: Path, draw: random.Random) -> None:
    path = directory / draw.choice(["model.safetensors", "tokenizer.model", "config.json"])
    path.unlink()
    if draw.random() < 0.5:
        path.mkdir()


def a_vocabulary(directory: Path, draw: random.Random) -> None:
    """Ids beyond the model's, negative, missing, or pieces with control characters."""
    for name in ("source.spm", "target.spm"):
        shutil.copy(directory / "tokenizer.model", directory / name)
    ids: dict[str, object] = {"<unk>": 1, "</s>": 2, "<pad>": 0, "▁seven": 5, EVIL + "a": 6}
    ids |= draw.choice(
        [{"▁seven": 1_000_000}, {"▁eight": -1}, {"<unk>": 10**30}, {"a": "b"}, {"a": None},
         {f"w{i}": i for i in range(500)}, {f"{EVIL}{i}": i for i in range(3, 119)}, {}]
    )  # fmt: skip
    (directory / "vocab.json").write_text(json.dumps(ids))


def a_word_list(directory: Path, draw: random.Random) -> None:
    words = draw.choice([10**5, 10, 0])
    lines = [f"{EVIL if draw.random() < 0.1 else ''}w{i} 1\n" for i in range(words)]
    (directory / "dict.txt").write_text("".join(lines))


def a_frame(directory: Path, draw: random.Random) -> None:
    ids = draw.choice([[10**6], [-1], [2**40], ["a"], [[]], [1.5], 7, None, {EVIL: 1}, [5] * 9999])
    frame = {draw.choice(["before", "after", "start", EVIL]): ids}
    (directory / "tokenizer_config.json").write_text(json.dumps({"frame": frame}))


def search_options(directory: Path, draw: random.Random) -> None:
    names = ["beam", "nbest", "alpha", "temperature", "seed", "max_tokens", "banned", "top_p", EVIL]
    names += ["banned_phrases", "first_word", "no_repeat_ngram", "stop", "min_tokens", "sample"]
    value = draw.choice([*BIG, *ODD, [10**6], [[10**6]], [-1], ["a"], 1e300, 5])
    (directory / "generation.json").write_text(json.dumps({draw.choice(names): value}))


SPOILS: list[Spoil] = [
    a_huge_number, several_huge_numbers, an_odd_value, another_choice, an_unknown_key, no_json,
    a_strange_tensor, huge_weights, many_tensors, a_lying_header, damaged_bytes, cut_short,
    a_missing_or_odd_file, a_vocabulary, a_word_list, a_frame, search_options,
]  # fmt: skip
