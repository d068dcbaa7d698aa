"""Implementations that live in repositories rather than packages, laid out from their sources."""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.decoding.options import model_options
from mlx_transformer.errors import InputError
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


def run_layers(residual, attend, feed_forward, names, depth, x, sides):
    """Layers of any family: `names(i)` gives (sublayer, norm) pairs, `sides` what is attended."""
    for i in range(depth):
        *attentions, last = names(i)
        for (name, norm_name), (memory, mask) in zip(attentions, sides, strict=True):
            x = residual(
                x,
                norm_name,
                lambda z, n=name, m=memory, k=mask: attend(n, z, z if m is None else m, k),
            )
        x = residual(x, last[1], lambda z, n=last[0]: feed_forward(n, z))
    return x


# The Annotated Transformer


def annotated_state():
    found = {"src_embed.0.lut.weight": (V, D), "tgt_embed.0.lut.weight": (TARGET_V, D)}
    found |= {"generator.proj.weight": (TARGET_V, D), "generator.proj.bias": (TARGET_V,)}
    for stack, depth, attentions in (
        ("encoder", 2, ["self_attn"]),
        ("decoder", 3, ["self_attn", "src_attn"]),
    ):
        norms = [f"{stack}.norm"]
        for i in range(depth):
            layer = f"{stack}.layers.{i}"
            for name in attentions:
                for k in range(4):
                    found[f"{layer}.{name}.linears.{k}.weight"] = (D, D)
                    found[f"{layer}.{name}.linears.{k}.bias"] = (D,)
            for kind, shape in {"w_1": (FF, D), "w_2": (D, FF)}.items():
                found[f"{layer}.feed_forward.{kind}.weight"] = shape
                found[f"{layer}.feed_forward.{kind}.bias"] = shape[:1]
            norms += [f"{layer}.sublayer.{k}.norm" for k in range(len(attentions) + 1)]
        found |= {f"{name}.{kind}": (D,) for name in norms for kind in ("a_2", "b_2")}
    state = randomly(found)
    table = sinusoids(50, D, halves=False, divisor=D / 2)[None]
    return state | {"src_embed.1.pe": table, "tgt_embed.1.pe": table}


def annotated_logits(state):
    def layer_norm(name, x):
        """Its own norm: the deviation is the unbiased one, and epsilon is added to it."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return state[f"{name}.a_2"] * (x - mean) / (std + 1e-6) + state[f"{name}.b_2"]

    def residual(x, name, sublayer):
        return x + sublayer(layer_norm(name, x))

    def attend(name, x, y, mask):
        q, k, v = (linear(state, f"{name}.linears.{i}", z) for i, z in enumerate((x, y, y)))
        return linear(state, f"{name}.linears.3", attention(q, k, v, H, mask))

    def feed_forward(name, x):
        return linear(state, f"{name}.w_2", F.relu(linear(state, f"{name}.w_1", x)))

    def names(stack, attentions):
        def of(i):
            layer = f"{stack}.layers.{i}"
            parts = [*attentions, "feed_forward"]
            return [(f"{layer}.{p}", f"{layer}.sublayer.{k}.norm") for k, p in enumerate(parts)]

        return of

    def embed(side, ids):
        words = state[f"{side}_embed.0.lut.weight"][ids] * math.sqrt(D)
        return words + state[f"{side}_embed.1.pe"][0, : ids.shape[1]]

    def logits(source, target):
        words, causal = masks(source, target, pad_id=2)
        parts = (residual, attend, feed_forward)
        x = run_layers(
            *parts, names("encoder", ["self_attn"]), 2, embed("src", source), [(None, words)]
        )
        memory = layer_norm("encoder.norm", x)
        sides = [(None, causal), (memory, words)]
        y = run_layers(
            *parts, names("decoder", ["self_attn", "src_attn"]), 3, embed("tgt", target), sides
        )
        return linear(state, "generator.proj", layer_norm("decoder.norm", y))

    return logits


def test_annotated(tmp_path: Path) -> None:
    state = annotated_state()
    torch.save(state, tmp_path / "a.pt")
    report = convert(tmp_path / "a.pt", tmp_path / "out", Options(settings={"h": H}))
    assert report.family == "annotated"
    config = assert_equal_models(tmp_path / "out", annotated_logits(state)).config
    assert (config.pad_id, config.start_id, config.eos_id, config.max_length) == (2, 0, 1, 50)


# jadore801120


def jadore_state(tied: bool):
    found = {"encoder.src_word_emb.weight": (V, D), "decoder.trg_word_emb.weight": (TARGET_V, D)}
    found["trg_word_prj.weight"] = (TARGET_V, D)
    d_k, d_v = 6, 10  # d_k, d_v and d_model / h are three numbers here
    for stack, depth, attentions in (
        ("encoder", 2, ["slf_attn"]),
        ("decoder", 3, ["slf_attn", "enc_attn"]),
    ):
        norms = [f"{stack}.layer_norm"]
        for i in range(depth):
            layer = f"{stack}.layer_stack.{i}"
            for name in attentions:
                found |= {f"{layer}.{name}.w_{x}s.weight": (H * d_k, D) for x in "qk"}
                found[f"{layer}.{name}.w_vs.weight"] = (H * d_v, D)
                found[f"{layer}.{name}.fc.weight"] = (D, H * d_v)
                norms.append(f"{layer}.{name}.layer_norm")
            for kind, shape in {"w_1": (FF, D), "w_2": (D, FF)}.items():
                found[f"{layer}.pos_ffn.{kind}.weight"] = shape
                found[f"{layer}.pos_ffn.{kind}.bias"] = shape[:1]
            norms.append(f"{layer}.pos_ffn.layer_norm")
        found |= {f"{name}.{kind}": (D,) for name in norms for kind in ("weight", "bias")}
    state = randomly(found)
    if tied:
        state["trg_word_prj.weight"] = state["decoder.trg_word_emb.weight"]
    table = sinusoids(200, D, halves=False, divisor=D / 2)[None]
    return state | {f"{stack}.position_enc.pos_table": table for stack in ("encoder", "decoder")}


def jadore_logits(state, embedding_scale, logit_scale):
    def residual(x, name, sublayer):
        return norm(state, name, x + sublayer(x), 1e-6)

    def attend(name, x, y, mask):
        q, k, v = (
            linear(state, f"{name}.w_{p}s", z) for p, z in zip("qkv", (x, y, y), strict=True)
        )
        return linear(state, f"{name}.fc", attention(q, k, v, H, mask))

    def feed_forward(name, x):
        return linear(state, f"{name}.w_2", F.relu(linear(state, f"{name}.w_1", x)))

    def names(stack, attentions):
        parts = [*attentions, "pos_ffn"]
        return lambda i: [
            (f"{stack}.layer_stack.{i}.{p}", f"{stack}.layer_stack.{i}.{p}.layer_norm")
            for p in parts
        ]

    def embed(stack, side, ids):
        words = state[f"{stack}.{side}_word_emb.weight"][ids] * embedding_scale
        x = words + state[f"{stack}.position_enc.pos_table"][0, : ids.shape[1]]
        return norm(state, f"{stack}.layer_norm", x, 1e-6)

    def logits(source, target):
        words, causal = masks(source, target, pad_id=1)
        parts = (residual, attend, feed_forward)
        x = embed("encoder", "src", source)
        memory = run_layers(*parts, names("encoder", ["slf_attn"]), 2, x, [(None, words)])
        y = embed("decoder", "trg", target)
        sides = [(None, causal), (memory, words)]
        y = run_layers(*parts, names("decoder", ["slf_attn", "enc_attn"]), 3, y, sides)
        return linear(state, "trg_word_prj", y) * logit_scale

    return logits


@pytest.mark.parametrize(
    ("tied", "scaling", "embedding_scale", "logit_scale"),
    [
        (True, "prj", 1, D**-0.5),
        (True, "emb", D**0.5, 1),
        (True, "none", 1, 1),
        (False, "prj", 1, 1),
    ],
)
def test_jadore(tmp_path: Path, tied, scaling, embedding_scale, logit_scale) -> None:
    state = jadore_state(tied)
    opt = argparse.Namespace(n_head=H, src_pad_idx=1, dropout=0.1, scale_emb_or_prj=scaling)
    torch.save({"epoch": 3, "settings": opt, "model": state}, tmp_path / "model.chkpt")
    report = convert(tmp_path / "model.chkpt", tmp_path / "out")
    assert report.family == "jadore"
    original = jadore_logits(state, embedding_scale, logit_scale)
    config = assert_equal_models(tmp_path / "out", original).config
    assert (config.d_k, config.d_v, config.embedding_norm) == (6, 10, True)


# OpenNMT-py


def opennmt_state(*, bias: bool, old_norms: bool = False):
    table = "embeddings.make_embedding.emb_luts.0.weight"
    found = {f"encoder.{table}": (V, D), f"decoder.{table}": (TARGET_V, D)}
    scale, shift = ("a_2", "b_2") if old_norms else ("weight", "bias")
    for stack, layers, depth, attentions, layer_norms in (
        ("encoder", "transformer", 2, ["self_attn"], ["layer_norm"]),
        ("decoder", "transformer_layers", 3, ["self_attn", "context_attn"],
         ["layer_norm_1", "layer_norm_2"]),
    ):  # fmt: skip
        norms = [f"{stack}.layer_norm"]
        for i in range(depth):
            layer = f"{stack}.{layers}.{i}"
            for name in attentions:
                for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    found[f"{layer}.{name}.{part}.weight"] = (D, D)
                    found |= {f"{layer}.{name}.{part}.bias": (D,)} if bias else {}
            for kind, shape in {"w_1": (FF, D), "w_2": (D, FF)}.items():
                found[f"{layer}.feed_forward.{kind}.weight"] = shape
                found |= {f"{layer}.feed_forward.{kind}.bias": shape[:1]} if bias else {}
            norms += [f"{layer}.{n}" for n in (*layer_norms, "feed_forward.layer_norm")]
        found |= {f"{name}.{kind}": (D,) for name in norms for kind in (scale, shift)}
    state = randomly(found)
    positions = sinusoids(100, D, halves=False, divisor=D / 2)[:, None]
    for stack in ("encoder", "decoder"):
        state[f"{stack}.embeddings.make_embedding.pe.pe"] = positions
    return state


def opennmt_logits(state, generator):
    state = {k.replace("a_2", "weight").replace("b_2", "bias"): v for k, v in state.items()}

    def residual(x, name, sublayer):
        return x + sublayer(norm(state, name, x, 1e-6))

    def attend(name, x, y, mask):
        parts = zip(("query", "keys", "values"), (x, y, y), strict=True)
        q, k, v = (linear(state, f"{name}.linear_{p}", z) for p, z in parts)
        return linear(state, f"{name}.final_linear", attention(q, k, v, H, mask))

    def feed_forward(name, x):
        return linear(state, f"{name}.w_2", F.relu(linear(state, f"{name}.w_1", x)))

    def encoder(i):
        layer = f"encoder.transformer.{i}"
        return [
            (f"{layer}.self_attn", f"{layer}.layer_norm"),
            (f"{layer}.feed_forward", f"{layer}.feed_forward.layer_norm"),
        ]

    def decoder(i):
        layer = f"decoder.transformer_layers.{i}"
        return [
            (f"{layer}.self_attn", f"{layer}.layer_norm_1"),
            (f"{layer}.context_attn", f"{layer}.layer_norm_2"),
            (f"{layer}.feed_forward", f"{layer}.feed_forward.layer_norm"),
        ]

    def embed(stack, ids):
        make = f"{stack}.embeddings.make_embedding"
        words = state[f"{make}.emb_luts.0.weight"][ids] * math.sqrt(D)
        return words + state[f"{make}.pe.pe"][: ids.shape[1], 0]

    def logits(source, target):
        words, causal = masks(source, target, pad_id=1)
        parts = (residual, attend, feed_forward)
        x = run_layers(*parts, encoder, 2, embed("encoder", source), [(None, words)])
        memory = norm(state, "encoder.layer_norm", x, 1e-6)
        sides = [(None, causal), (memory, words)]
        y = run_layers(*parts, decoder, 3, embed("decoder", target), sides)
        return F.linear(norm(state, "decoder.layer_norm", y, 1e-6), *generator.values())

    return logits


WORDS = ["<unk>", "<blank>", "<s>", "</s>"]


@pytest.mark.parametrize("version", [2, 3])
def test_opennmt(tmp_path: Path, version: int) -> None:
    state = opennmt_state(bias=version == 2, old_norms=version == 2)
    generator = randomly({"weight": (TARGET_V, D), "bias": (TARGET_V,)}, seed=5)
    vocab = {
        "src": WORDS + ["s0", "[nH]"] + [f"s{i}" for i in range(2, V - 4)],
        "tgt": WORDS + ["t0", "[nH]"] + [f"t{i}" for i in range(2, TARGET_V - 4)],
        "data_task": "seq2seq",
        "decoder_start_token": "<s>",
    }
    old = {f"0.{name}": values for name, values in generator.items()}
    checkpoint = {
        "model": state,
        "generator": old if version == 2 else generator,
        "vocab": vocab,
        "opt": argparse.Namespace(
            heads=H, position_encoding=True, dropout=[0.1], layer_norm="standard"
        ),
        "optim": {"training_step": 3, "state_dict": {}},
    }
    torch.save(checkpoint, tmp_path / "model.pt")
    report = convert(tmp_path / "model.pt", tmp_path / "out")
    assert report.family == "opennmt"
    config = assert_equal_models(tmp_path / "out", opennmt_logits(state, generator)).config
    assert (config.pad_id, config.start_id, config.eos_id) == (1, 2, 3)
    assert config.attention_bias == (version == 2)
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.sources(["s0 [nH] s2 ?"], config.eos_id) == [[4, 5, 6, 0]]  # no end
    assert tokenizer.decode([2, 5, 4, 3]) == "[nH] t0"
    assert model_options(tmp_path / "out").whole_lines


def test_opennmt_with_relative_positions_is_refused(tmp_path: Path) -> None:
    opt = argparse.Namespace(heads=H, position_encoding=False, max_relative_positions=20)
    torch.save({"model": opennmt_state(bias=True), "opt": opt}, tmp_path / "model.pt")
    with pytest.raises(InputError, match="sinusoidal positions"):
        convert(tmp_path / "model.pt", tmp_path / "out")


# Marian C++


def marian_state(*, pre_norm: bool, tied_all: bool):
    if tied_all:
        found = {"Wemb": (V, D), "decoder_ff_logit_out_b": (1, V)}
    else:
        found = {"encoder_Wemb": (V, D), "decoder_Wemb": (TARGET_V, D)}
        found |= {"decoder_ff_logit_out_b": (1, TARGET_V), "decoder_ff_logit_out_Wt": (TARGET_V, D)}
    for stack, depth, attentions in (
        ("encoder", 2, ["self"]),
        ("decoder", 3, ["self", "context"]),
    ):
        norms = [f"{stack}_top_ln_*"] if pre_norm else []
        suffix = "_pre" if pre_norm else ""
        for n in range(1, depth + 1):
            layer = f"{stack}_l{n}"
            for name in attentions:
                for part in "qkvo":
                    found[f"{layer}_{name}_W{part}"] = (D, D)
                    found[f"{layer}_{name}_b{part}"] = (1, D)
                norms.append(f"{layer}_{name}_Wo_ln_*{suffix}")
            found |= {f"{layer}_ffn_W1": (D, FF), f"{layer}_ffn_b1": (1, FF)}
            found |= {f"{layer}_ffn_W2": (FF, D), f"{layer}_ffn_b2": (1, D)}
            norms.append(f"{layer}_ffn_ffn_ln_*{suffix}")
        found |= {name.replace("*", kind): (1, D) for name in norms for kind in ("scale", "bias")}
    return randomly(found)


def marian_logits(state, *, pre_norm: bool):
    table = sinusoids(64, D, halves=True, divisor=D / 2 - 1)
    suffix = "_pre" if pre_norm else ""

    def layer_norm(name, x, suffix=suffix):
        scale, bias = (state[f"{name}_ln_{kind}{suffix}"][0] for kind in ("scale", "bias"))
        return F.layer_norm(x, (D,), scale, bias, 1e-6)

    def residual(x, name, sublayer):
        return x + sublayer(layer_norm(name, x)) if pre_norm else layer_norm(name, x + sublayer(x))

    def affine(name, part, x):
        return x @ state[f"{name}_W{part}"] + state[f"{name}_b{part}"]

    def attend(name, x, y, mask):
        q, k, v = (affine(name, part, z) for part, z in zip("qkv", (x, y, y), strict=True))
        return affine(name, "o", attention(q, k, v, H, mask))

    def feed_forward(name, x):
        return affine(name, "2", F.silu(affine(name, "1", x)))

    def names(stack, attentions):
        def of(i):
            layer = f"{stack}_l{i + 1}"
            pairs = [(f"{layer}_{name}", f"{layer}_{name}_Wo") for name in attentions]
            return [*pairs, (f"{layer}_ffn", f"{layer}_ffn_ffn")]

        return of

    def embedding(stack):
        return state.get(f"{stack}_Wemb", state.get("Wemb"))

    def finish(stack, x):
        return layer_norm(f"{stack}_top", x, "") if pre_norm else x

    def logits(source, target):
        # Marian has none: masked by length there.
        pad_id = max(len(embedding(stack)) for stack in ("encoder", "decoder"))
        words, causal = masks(source, target, pad_id)
        padded = torch.cat([embedding("encoder"), torch.zeros(pad_id + 1, D)])
        x = padded[source] * math.sqrt(D) + table[: source.shape[1]]
        parts = (residual, attend, feed_forward)
        memory = finish(
            "encoder", run_layers(*parts, names("encoder", ["self"]), 2, x, [(None, words)])
        )
        y = embedding("decoder")[target] * math.sqrt(D)
        y = torch.cat([torch.zeros(len(y), 1, D), y[:, 1:]], 1) + table[: target.shape[1]]
        sides = [(None, causal), (memory, words)]
        y = finish(
            "decoder", run_layers(*parts, names("decoder", ["self", "context"]), 3, y, sides)
        )
        output = state.get("decoder_ff_logit_out_Wt", embedding("decoder"))
        return y @ output.T + state["decoder_ff_logit_out_b"]

    return logits


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("tied_all", [False, True], ids=["untied", "tied"])
def test_marian_npz(tmp_path: Path, pre_norm: bool, tied_all: bool) -> None:
    state = marian_state(pre_norm=pre_norm, tied_all=tied_all)
    text = f"""\
dim-vocabs:
  - {V}
transformer-heads: {H}
transformer-preprocess: "{"n" if pre_norm else ""}"
transformer-postprocess: {"da" if pre_norm else "dan"}
transformer-postprocess-emb: d
transformer-ffn-activation: swish
transformer-decoder-autoreg: self-attention
transformer-no-projection: false
type: transformer
"""
    config = np.frombuffer(text.encode() + b"\0", np.int8)
    arrays = {name: values.numpy() for name, values in state.items()}
    np.savez(tmp_path / "model.npz", **arrays, **{"special:model.yml": config})
    (tmp_path / "opus.vocab.yml").write_text('</s>: 0\n"a": 1\n"\\"": 2\n')
    report = convert(tmp_path / "model.npz", tmp_path / "out")
    assert report.family == "marian-npz"
    model = assert_equal_models(tmp_path / "out", marian_logits(state, pre_norm=pre_norm))
    assert model.config.start_id is None
    pad_id = V if tied_all else max(V, TARGET_V)  # beyond the words of both sides
    assert model.config.pad_id == pad_id
    vocab = json.loads((tmp_path / "out" / "vocab.json").read_text())
    assert vocab == {"</s>": 0, "a": 1, '"': 2, "<pad>": pad_id}
