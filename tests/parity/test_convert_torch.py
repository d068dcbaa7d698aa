"""torch.nn.Transformer inside a model of a user's own."""

import json
import math
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.verify import verify
from mlx_transformer.decoding.options import model_options
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer import load_tokenizer
from tests.parity.conversion_checks import assert_equal_models, sinusoids

IDS = {"h": 4, "pad_id": 1, "start_id": 2, "eos_id": 3}
D = 32


class Translator(nn.Module):
    """Like PyTorch's translation tutorial."""

    def __init__(
        self, *, norm_first=False, activation="relu", learned=False, bias=True, tied=False
    ):
        super().__init__()
        torch.manual_seed(0)
        self.transformer = nn.Transformer(
            D, 4, 2, 3, 48, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias
        )
        self.src_tok_emb = nn.Embedding(40, D)
        self.tgt_tok_emb = nn.Embedding(50, D)
        self.generator = nn.Linear(D, 50, bias=not tied)
        if tied:
            self.generator.weight = self.tgt_tok_emb.weight
        table = sinusoids(60, D, halves=False, divisor=D / 2)
        if learned:
            self.pos_embedding = nn.Parameter(torch.randn(60, D))
        else:
            self.register_buffer("pos_embedding", table[:, None])
        for parameter in self.transformer.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
        self.eval()

    def forward(self, source, target):
        padding = source == 1
        table = self.pos_embedding.reshape(60, D)
        hidden = self.transformer(
            self.src_tok_emb(source) * math.sqrt(D) + table[: source.shape[1]],
            self.tgt_tok_emb(target) * math.sqrt(D) + table[: target.shape[1]],
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.generator(hidden)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({}, {}),
        ({"norm_first": True, "activation": "gelu"}, {"norm": "pre", "activation": "gelu"}),
        ({"learned": True, "tied": True}, {}),
        ({"bias": False}, {}),
    ],
    ids=["tutorial", "pre-norm", "learned-tied", "no-bias"],
)
def test_a_users_model(tmp_path: Path, model: dict, settings: dict) -> None:
    original = Translator(**model)
    torch.save(original.state_dict(), tmp_path / "model.pt")
    convert(tmp_path / "model.pt", tmp_path / "out", Options(settings=IDS | settings))
    converted = assert_equal_models(tmp_path / "out", original)
    config = converted.config
    assert config.positions == ("learned" if model.get("learned") else "sinusoidal")
    assert config.tied_output == bool(model.get("tied"))
    assert not config.shared_embeddings


@pytest.mark.parametrize(
    "said",
    [
        {"hyper_parameters": {"nhead": 4, "pad_idx": 1, "bos_idx": 2, "eos_idx": 3}},
        {"hyper_parameters": {"config": {"num_heads": 4, "pad_id": 1, "sos_id": 2, "eos_id": 3}}},
        {"hyper_parameters": Namespace(n_heads=4, pad_id=1, bos_id=2, eos_id=3)},
    ],
    ids=["flat", "nested", "namespace"],
)
def test_lightning_says_the_rest(tmp_path: Path, said: dict) -> None:
    original = Translator()
    state = {f"model.{name}": values for name, values in original.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, **said}, tmp_path / "epoch=3.ckpt")
    convert(tmp_path / "epoch=3.ckpt", tmp_path / "out")
    assert_equal_models(tmp_path / "out", original)


# Where users put their stacks: what keys of the tutorial's model start with, and theirs.
ELSEWHERE = {
    "apart": {
        "transformer.encoder.": "transformer_encoder.",
        "transformer.decoder.": "transformer_decoder.",
    },
    "inside": {"transformer.encoder.": "enc.encoder.", "transformer.decoder.": "dec.decoder."},
    "lists": {
        "transformer.encoder.layers.": "encoder_layers.",
        "transformer.decoder.layers.": "decoder_layers.",
        "transformer.encoder.norm.": "encoder.norm.",
        "transformer.decoder.norm.": "decoder.norm.",
    },
}


@pytest.mark.parametrize("moved", ELSEWHERE.values(), ids=ELSEWHERE)
def test_stacks_are_found_wherever_they_are(tmp_path: Path, moved: dict[str, str]) -> None:
    original = Translator()
    state = {"tgt_mask": torch.ones(60, 60).triu(1), "criterion.weight": torch.ones(50)}
    for name, values in original.state_dict().items():
        start = next((start for start in moved if name.startswith(start)), "")
        state[moved.get(start, "") + name.removeprefix(start)] = values
    torch.save(state, tmp_path / "model.pt")
    convert(tmp_path / "model.pt", tmp_path / "out", Options(settings=IDS))
    assert_equal_models(tmp_path / "out", original)
    assert verify(tmp_path / "model.pt", tmp_path / "out", Options(settings=IDS)).holds


def test_a_whole_module_says_its_heads_and_norms(tmp_path: Path) -> None:
    original = Translator(norm_first=True, activation="gelu")
    torch.save(original, tmp_path / "model.pt")
    ids = {name: i for name, i in IDS.items() if name != "h"}
    convert(tmp_path / "model.pt", tmp_path / "out", Options(settings=ids))
    config = assert_equal_models(tmp_path / "out", original).config
    assert (config.h, config.norm, config.activation) == (4, "pre", "gelu")


def test_what_lies_beside_a_whole_module_counts_as_well(tmp_path: Path) -> None:
    original = Translator(norm_first=True)
    args = Namespace(pad_id=1, bos_id=2, eos_id=3)
    torch.save({"model": original, "args": args}, tmp_path / "model.pt")
    convert(tmp_path / "model.pt", tmp_path / "out")
    config = assert_equal_models(tmp_path / "out", original).config
    assert (config.h, config.norm, config.start_id) == (4, "pre", 2)


SPECIAL = ["<UNK>", "<PAD>", "<SOS>", "<EOS>"]
LETTERS = [chr(ord("a") + i) for i in range(36)]


def lists_of_letters(folder: Path) -> tuple[Path, Path]:
    """A vocabulary a side: 40 source letters by id, 50 target letters in a list"""
    source, target = folder / "source.json", folder / "target.json"
    source.write_text(json.dumps({word: i for i, word in enumerate([*SPECIAL, *LETTERS])}))
    target.write_text(json.dumps([*SPECIAL, *[chr(ord("А") + i) for i in range(46)]]))
    return source, target


def test_lists_of_letters_say_the_special_ids(tmp_path: Path) -> None:
    original = Translator()
    torch.save(original.state_dict(), tmp_path / "model.pt")
    source, target = lists_of_letters(tmp_path)
    options = Options(
        source_vocab=source, target_vocab=target, source_start=True, settings={"h": 4}
    )
    convert(tmp_path / "model.pt", tmp_path / "out", options)
    assert_equal_models(tmp_path / "out", original)
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.sources(["ab?"], eos_id=3) == [[2, 4, 5, 0, 3]]
    assert tokenizer.decode([2, 4, 6, 3]) == "АВ"


def test_one_list_beside_the_weights(tmp_path: Path) -> None:
    torch.save(Translator().state_dict(), tmp_path / "model.pt")
    lists_of_letters(tmp_path)[0].rename(tmp_path / "vocab.json")
    convert(tmp_path / "model.pt", tmp_path / "out", Options(settings={"h": 4}))
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.sources(["ba"], eos_id=3) == [[5, 4, 3]]
    assert model_options(tmp_path / "out").whole_lines


def test_a_start_of_sources_needs_a_vocabulary(tmp_path: Path) -> None:
    torch.save(Translator().state_dict(), tmp_path / "model.pt")
    with pytest.raises(InputError, match="name a vocabulary"):
        convert(tmp_path / "model.pt", tmp_path / "out", Options(source_start=True, settings=IDS))
