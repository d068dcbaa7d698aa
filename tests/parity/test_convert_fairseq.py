"""fairseq checkpoints: new ones, bare ones, and the packed form of before 2019."""

import argparse
import json
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.families import find_family
from mlx_transformer.convert.family import Options
from mlx_transformer.errors import InputError
from mlx_transformer.storage import load_model
from mlx_transformer.tokenizer import load_tokenizer
from tests.parity.conversion_checks import (
    assert_equal_models,
    attention,
    linear,
    masks,
    norm,
    randomly,
    sinusoids,
)

D, FF, H, V, TARGET_V = 32, 48, 4, 40, 48


def shapes(*, pre_norm=False, shared=False, tied=False, learned=False, embedding_norm=False):
    """Names and shapes of a model with 2 encoder and 3 decoder layers."""
    found = {"encoder.embed_tokens.weight": (V, D)}
    target = V if shared else TARGET_V
    found["decoder.embed_tokens.weight"] = (target, D)
    found["decoder.output_projection.weight"] = (target, D)
    for stack, depth, attentions in (
        ("encoder", 2, ["self_attn"]),
        ("decoder", 3, ["self_attn", "encoder_attn"]),
    ):
        if learned:
            found[f"{stack}.embed_positions.weight"] = (66, D)
        norms = [f"{stack}.layer_norm"] if pre_norm else []
        norms += [f"{stack}.layernorm_embedding"] if embedding_norm else []
        for i in range(depth):
            layer = f"{stack}.layers.{i}"
            for name in attentions:
                for part in ("q", "k", "v", "out"):
                    found[f"{layer}.{name}.{part}_proj.weight"] = (D, D)
                    found[f"{layer}.{name}.{part}_proj.bias"] = (D,)
                norms.append(f"{layer}.{name}_layer_norm")
            norms.append(f"{layer}.final_layer_norm")
            found |= {f"{layer}.fc1.weight": (FF, D), f"{layer}.fc1.bias": (FF,)}
            found |= {f"{layer}.fc2.weight": (D, FF), f"{layer}.fc2.bias": (D,)}
        found |= {f"{name}.{kind}": (D,) for name in norms for kind in ("weight", "bias")}
    state = randomly(found)
    if shared:
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    if tied:
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    return state


def reference(state, *, pre_norm=False, activation=F.relu, scale=D**0.5):
    """fairseq's forward pass from its own names."""
    formula = sinusoids(64, D, halves=True, divisor=D / 2 - 1, first=2)

    def embed(stack, ids):
        learned = state.get(f"{stack}.embed_positions.weight")
        table = formula if learned is None else learned[2:]
        positions = table[: ids.shape[1]] * (ids != 1)[..., None]  # padding has none
        x = state[f"{stack}.embed_tokens.weight"][ids] * scale + positions
        name = f"{stack}.layernorm_embedding"
        return norm(state, name, x, 1e-5) if f"{name}.weight" in state else x

    def residual(x, name, sublayer):
        if pre_norm:
            return x + sublayer(norm(state, name, x, 1e-5))
        return norm(state, name, x + sublayer(x), 1e-5)

    def attend(name, x, y, mask):
        q, k, v = (
            linear(state, f"{name}.{p}_proj", z) for p, z in zip("qkv", (x, y, y), strict=True)
        )
        return linear(state, f"{name}.out_proj", attention(q, k, v, H, mask))

    def feed_forward(layer, x):
        return linear(state, f"{layer}.fc2", activation(linear(state, f"{layer}.fc1", x)))

    def finish(stack, x):
        return norm(state, f"{stack}.layer_norm", x, 1e-5) if pre_norm else x

    def logits(source, target):
        words, causal = masks(source, target, pad_id=1)
        x = embed("encoder", source)
        for i in range(2):
            layer = f"encoder.layers.{i}"
            attn = f"{layer}.self_attn"
            x = residual(x, f"{attn}_layer_norm", lambda z, a=attn: attend(a, z, z, words))
            x = residual(x, f"{layer}.final_layer_norm", lambda z, n=layer: feed_forward(n, z))
        memory = finish("encoder", x)
        y = embed("decoder", target)
        for i in range(3):
            layer = f"decoder.layers.{i}"
            attn, cross = f"{layer}.self_attn", f"{layer}.encoder_attn"
            y = residual(y, f"{attn}_layer_norm", lambda z, a=attn: attend(a, z, z, causal))
            y = residual(y, f"{cross}_layer_norm", lambda z, a=cross: attend(a, z, memory, words))
            y = residual(y, f"{layer}.final_layer_norm", lambda z, n=layer: feed_forward(n, z))
        return finish("decoder", y) @ state["decoder.output_projection.weight"].T

    return logits


def arguments(**changes) -> argparse.Namespace:
    values = {
        "arch": "transformer",
        "encoder_embed_dim": D,
        "encoder_layers": 2,
        "encoder_attention_heads": H,
        "decoder_attention_heads": H,
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "activation_fn": "relu",
        "dropout": 0.3,
        "max_source_positions": 64,
        "max_target_positions": 64,
        "no_scale_embedding": False,
        "source_lang": "en",
        "target_lang": "de",
        "left_pad_source": True,
    }
    return argparse.Namespace(**(values | changes))


def checkpoint(state, args, *, new: bool) -> dict[str, object]:
    """As fairseq saves it: sinusoids leave only a marker, and training leaves its state."""
    markers = {f"{s}.embed_positions._float_tensor": torch.zeros(1) for s in ("encoder", "decoder")}
    settings = {
        "cfg": {"model": args, "task": {"source_lang": "en", "target_lang": "de"}},
        "args": None,
    }
    return {
        **(settings if new else {"args": args}),
        "model": state | {"encoder.version": torch.tensor([3.0])} | markers,
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": 3}],
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []},
        "extra_state": {"epoch": 1, "best": float("inf")},
    }


@pytest.mark.parametrize("new", [True, False], ids=["cfg", "args"])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"shared": True, "tied": True, "pre_norm": True},
        {"tied": True, "learned": True, "embedding_norm": True},
    ],
    ids=["untied", "shared-pre-norm", "learned-embedding-norm"],
)
def test_checkpoints(tmp_path: Path, kind: dict, new: bool) -> None:
    state = shapes(**kind)
    pre = kind.get("pre_norm", False)
    args = arguments(encoder_normalize_before=pre, decoder_normalize_before=pre)
    torch.save(checkpoint(state, args, new=new), tmp_path / "checkpoint_best.pt")
    (tmp_path / "dict.en.txt").write_text("a 1\n")
    (tmp_path / "dict.de.txt").write_text("b 1\n")
    report = convert(tmp_path, tmp_path / "out")
    assert report.family == "fairseq"
    config = assert_equal_models(tmp_path / "out", reference(state, pre_norm=pre)).config
    assert (config.shared_embeddings, config.tied_output) == (
        kind.get("shared", False),
        kind.get("tied", False),
    )
    assert (config.dropout, config.max_length, config.start_id) == (0.3, 64, 2)
    assert (tmp_path / "out" / "dict.source.txt").read_text() == "a 1\n"
    assert (tmp_path / "out" / "dict.target.txt").read_text() == "b 1\n"


def test_gelu_without_embedding_scale(tmp_path: Path) -> None:
    state = shapes()
    args = arguments(activation_fn="gelu_accurate", no_scale_embedding=True)
    torch.save(checkpoint(state, args, new=False), tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "out")
    original = reference(state, activation=lambda x: F.gelu(x, approximate="tanh"), scale=1.0)
    assert_equal_models(tmp_path / "out", original)


def packed(state):
    """The names of before 2019: q, k, v in one matrix, numbered norms, embed_out."""
    old = {}
    for name, values in state.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith("q_proj"):
            layer = stem.removesuffix("q_proj")
            old[f"{layer}in_proj_{kind}"] = torch.cat(
                [state[f"{layer}{part}_proj.{kind}"] for part in "qkv"]
            )
        elif stem.endswith("_layer_norm") and ".layers." in stem:
            layer, _, which = stem.rpartition(".")
            numbers = ["self_attn_layer_norm", "final_layer_norm"]
            if stem.startswith("decoder"):
                numbers.insert(1, "encoder_attn_layer_norm")
            old[f"{layer}.layer_norms.{numbers.index(which)}.{kind}"] = values
        elif not stem.endswith(("k_proj", "v_proj")):
            old[name.replace("output_projection.weight", "embed_out")] = values
    return old


def test_packed_and_not_a_zip(tmp_path: Path) -> None:
    state = shapes()
    torch.save(
        checkpoint(packed(state), arguments(), new=False),
        tmp_path / "old.pt",
        _use_new_zipfile_serialization=False,
    )
    convert(tmp_path / "old.pt", tmp_path / "out")
    assert_equal_models(tmp_path / "out", reference(state))


def test_bare_state_dict_needs_the_heads(tmp_path: Path) -> None:
    state = shapes()
    torch.save({f"module.{name}": values for name, values in state.items()}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="give h"):
        convert(tmp_path / "a.pt", tmp_path / "out")
    convert(tmp_path / "a.pt", tmp_path / "out", Options(settings={"h": H}))
    assert_equal_models(tmp_path / "out", reference(state))


def test_padding_has_no_position(tmp_path: Path) -> None:
    """A decoder would have to write it: only so does it show."""
    state = shapes()
    torch.save(checkpoint(state, arguments(), new=False), tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "out")
    model = load_model(tmp_path / "out")
    family, source = find_family(read_checkpoint(tmp_path / "a.pt"), Options())
    ids = np.array([[5, 6, 2]]), np.array([[2, 7, 1, 8]])
    expected = reference(state)(*map(torch.tensor, ids)).numpy()
    ours = np.array(model(*map(mx.array, ids)))
    verified = family.original(source, model.config).logits(*ids)
    for found in (ours, verified):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_different_heads_are_refused(tmp_path: Path) -> None:
    args = arguments(decoder_attention_heads=2)
    torch.save(checkpoint(shapes(), args, new=False), tmp_path / "a.pt")
    with pytest.raises(InputError, match="encoder_attention_heads 4 and decoder_attention_heads 2"):
        convert(tmp_path / "a.pt", tmp_path / "out")


def test_dictionaries_beside_a_checkpoint_that_names_no_languages(tmp_path: Path) -> None:
    """The folder says the direction, or the sizes do; codes bring Moses's words."""
    state = shapes()
    words = [len(state[f"{s}.embed_tokens.weight"]) - 4 for s in ("encoder", "decoder")]
    assert words[0] != words[1]
    args = arguments()
    del args.source_lang, args.target_lang
    for name, sizes in (("wmt-de-en", [1, 1]), ("unnamed", words)):
        folder = tmp_path / name
        folder.mkdir()
        torch.save(checkpoint(state, args, new=False), folder / "model.pt")
        (folder / "dict.de.txt").write_text("".join(f"x{i} 1\n" for i in range(sizes[0])))
        (folder / "dict.en.txt").write_text("".join(f"a{i} 1\n" for i in range(sizes[1])))
        (folder / "bpecodes").write_text("#version: 0.2\nx a\n")
        convert(folder, tmp_path / "out" / name)
        out = tmp_path / "out" / name
        assert (out / "dict.source.txt").read_text().startswith("x0 1")
        assert (out / "dict.target.txt").read_text().startswith("a0 1")
        settings = json.loads((out / "tokenizer_config.json").read_text())
        assert settings == {"source_lang": "de", "target_lang": "en", "moses": True}
        assert (out / "bpecodes").is_file()


@pytest.mark.parametrize("named", ["the file", "the folder", "the dictionaries"])
def test_dictionaries_in_a_folder_near_the_checkpoints(tmp_path: Path, named: str) -> None:
    """As fairseq lays them out. Quotes that Moses would have escaped show that it cut none."""
    state, args = shapes(), arguments()
    del args.source_lang, args.target_lang
    words = [len(state[f"{s}.embed_tokens.weight"]) - 4 for s in ("encoder", "decoder")]
    model = tmp_path / "model"
    for name in ("checkpoints", "data", "logs"):
        (model / name).mkdir(parents=True)
    torch.save(checkpoint(state, args, new=False), model / "checkpoints" / "checkpoint_best.pt")
    lists = [model / "data" / f"dict.{language}.txt" for language in ("roman", "nqo")]
    for path, count in zip(lists, words, strict=True):
        path.write_text('a@@ 3\nb 2\n" 1\n' + "".join(f"x{i} 1\n" for i in range(count - 3)))
    (model / "data" / "bpe.code").write_text("#version: 0.2\nx a\n")
    options = Options()
    if named == "the dictionaries":
        options = Options(source_vocab=lists[0], target_vocab=lists[1])
    path = model if named == "the folder" else model / "checkpoints" / "checkpoint_best.pt"
    convert(path, tmp_path / "out", options)
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.encode_source('ab " b') == [4, 5, 6, 5]
    assert tokenizer.decode([4, 5, 6, 2]) == 'ab "'
    assert tokenizer.target_vocab_size == words[1] + 4


def test_words_of_both_sides_that_are_stored_once(tmp_path: Path) -> None:
    state = shapes(shared=True, tied=True)
    expected = reference(state)
    stored = {name: v for name, v in state.items() if name != "decoder.embed_tokens.weight"}
    torch.save(checkpoint(stored, arguments(), new=False), tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "out")
    assert assert_equal_models(tmp_path / "out", expected).config.shared_embeddings


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads anything")
def test_a_folder_around_it_that_cannot_be_read_does_not_matter(tmp_path: Path) -> None:
    around = tmp_path / "around"
    (around / "model").mkdir(parents=True)
    torch.save(checkpoint(shapes(), arguments(), new=False), around / "model" / "a.pt")
    around.chmod(0o300)
    convert(around / "model" / "a.pt", tmp_path / "out")
    around.chmod(0o700)
