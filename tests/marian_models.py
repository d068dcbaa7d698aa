"""Marian's own files, written and run in plain NumPy: a small student with an SSRU decoder."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

D, FF, H, V, LAYERS = 16, 24, 2, 30, {"encoder": 2, "decoder": 2}
KINDS = {
    np.dtype(d): 0x100 * c + d().itemsize
    for d, c in ((np.int8, 1), (np.float32, 4), (np.float16, 4))
}
YAML = f"""\
dec-cell: ssru
enc-depth: 2
dec-depth: 2
dim-emb: {D}
dim-vocabs:
  - {V}
  - {V}
tied-embeddings-all: true
transformer-decoder-autoreg: rnn
transformer-ffn-activation: relu
transformer-heads: {H}
transformer-postprocess: dan
transformer-preprocess: ""
transformer-tied-layers:
  []
type: transformer
"""
Arrays = dict[str, np.ndarray]


def student(seed: int = 0) -> Arrays:
    """Random weights under Marian's names; matrices are (in,out), all else is (1,n)."""
    generator = np.random.default_rng(seed)
    made: Arrays = {"Wemb": generator.normal(size=(V, D)), "decoder_ff_logit_out_b": _row(V)}
    for stack, depth in LAYERS.items():
        for n in range(1, depth + 1):
            layer = f"{stack}_l{n}"
            attentions = ["self"] if stack == "encoder" else ["context"]
            for attention in attentions:
                made |= {f"{layer}_{attention}_W{p}": _matrix(D, D) for p in "qkvo"}
                made |= {f"{layer}_{attention}_b{p}": _row(D) for p in "qkvo"}
                made |= {f"{layer}_{attention}_Wo_ln_{kind}": _row(D) for kind in ("scale", "bias")}
            if stack == "decoder":
                made |= {f"{layer}_rnn_W": _matrix(D, D), f"{layer}_rnn_Wf": _matrix(D, D)}
                made |= {f"{layer}_rnn_bf": _row(D)}
                made |= {f"{layer}_rnn_ffn_ln_{kind}": _row(D) for kind in ("scale", "bias")}
            made |= {f"{layer}_ffn_W1": _matrix(D, FF), f"{layer}_ffn_W2": _matrix(FF, D)}
            made |= {f"{layer}_ffn_b1": _row(FF), f"{layer}_ffn_b2": _row(D)}
            made |= {f"{layer}_ffn_ffn_ln_{kind}": _row(D) for kind in ("scale", "bias")}
    return {
        name: (generator.normal(size=a.shape) / len(a) ** 0.5 + ("scale" in name)).astype("f4")
        for name, a in made.items()
    }


def _matrix(rows: int, columns: int) -> np.ndarray:
    return np.zeros((rows, columns))


def _row(n: int) -> np.ndarray:
    return np.zeros((1, n))


# The file


def write_bin(
    path: Path, arrays: Mapping[str, np.ndarray], kind: str = "float32", yaml: str = YAML
) -> Path:
    """In one of Marian's types: matrices are quantised where it is intgemm8 or intgemm16."""
    config = np.frombuffer(yaml.encode() + b"\0", np.int8)
    items = [(name, *_item(name, a, kind)) for name, a in sorted(arrays.items())]
    items.append(("special:model.yml", 0x101, config.shape, config.tobytes()))
    names = [name.encode() + b"\0" for name, *_ in items]
    head = struct.pack("<QQ", 1, len(items))
    for name, (_, code, shape, data) in zip(names, items, strict=True):
        head += struct.pack("<QQQQ", len(name), code, len(shape), len(data))
    head += b"".join(names)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(head) + 8) % 256
    head += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(head + b"".join(data for *_, data in items))
    return path


def _item(name: str, array: np.ndarray, kind: str) -> tuple[int, tuple[int, ...], bytes]:
    is_matrix = len(array) > 1
    if not kind.startswith("intgemm") or not is_matrix:
        values = array.astype("f4" if kind.startswith("intgemm") else kind)
        return KINDS[values.dtype], array.shape, _to_256(values.tobytes())
    bits = int(kind.removeprefix("intgemm"))
    whole, scale = quantized(array, bits)
    data = (whole if name == "Wemb" else whole.T).tobytes() + struct.pack("<f", scale)
    return 0x4100 + bits // 8, array.shape, _to_256(data)


def _to_256(data: bytes) -> bytes:
    return data + b"\xff" * (-len(data) % 256)


def quantized(array: np.ndarray, bits: int) -> tuple[np.ndarray, np.float32]:
    scale = np.float32(127 / abs(array).max() if bits == 8 else 1024)
    return np.round(array * scale).astype(f"i{bits // 8}"), scale


def write_lex(path: Path, lists: Sequence[Sequence[int]], first: int) -> Path:
    """A shortlist as Marian writes it, checksum included; `lists` are by source word"""
    starts = np.cumsum([0, *map(len, lists)]).tolist()
    words = [word for each in lists for word in each]
    body = struct.pack("<QQQQ", first, 4, len(starts), len(words))
    body += struct.pack(f"<{len(starts)}Q", *starts) + struct.pack(f"<{len(words)}I", *words)
    total = 0
    for (number,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8]):
        total ^= (number + 0x9E3779B9 + (total << 6) + (total >> 2)) % 2**64
    path.write_bytes(struct.pack("<QQ", 0xF11A48D5013417F5, total) + body)
    return path


# The model


def logits(w: Arrays, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """One sentence, float64, position by position: what follows each of `target` -> (T,V)"""
    w = {name: a.astype(np.float64) for name, a in w.items()}
    x = _embedded(w["Wemb"][list(source)])
    for n in range(1, LAYERS["encoder"] + 1):
        layer = f"encoder_l{n}"
        x = _norm(w, f"{layer}_self_Wo", x + _attention(w, f"{layer}_self", x, x))
        x = _norm(w, f"{layer}_ffn_ffn", x + _feed_forward(w, layer, x))
    words = w["Wemb"][list(target)]
    words[0] = 0  # the decoder starts from nothing
    y = _embedded(words)
    for n in range(1, LAYERS["decoder"] + 1):
        layer = f"decoder_l{n}"
        y = _norm(w, f"{layer}_rnn_ffn", y + _recurrence(w, layer, y))
        y = _norm(w, f"{layer}_context_Wo", y + _attention(w, f"{layer}_context", y, x))
        y = _norm(w, f"{layer}_ffn_ffn", y + _feed_forward(w, layer, y))
    return y @ w["Wemb"].T + w["decoder_ff_logit_out_b"]


def _embedded(words: np.ndarray) -> np.ndarray:
    rates = 10_000.0 ** -(np.arange(D // 2) / (D // 2 - 1))
    angles = np.arange(len(words))[:, None] * rates
    return words * D**0.5 + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _recurrence(w: Arrays, layer: str, y: np.ndarray) -> np.ndarray:
    cells, found = np.zeros(D), []
    for word in y:
        forget = 1 / (1 + np.exp(-(word @ w[f"{layer}_rnn_Wf"] + w[f"{layer}_rnn_bf"][0])))
        cells = forget * cells + (1 - forget) * (word @ w[f"{layer}_rnn_W"])
        found.append(np.maximum(cells, 0))
    return np.array(found)


def _attention(w: Arrays, name: str, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
    q, k, v = (
        z @ w[f"{name}_W{p}"] + w[f"{name}_b{p}"]
        for p, z in zip("qkv", (x, memory, memory), strict=True)
    )
    heads = []
    for part in np.split(np.arange(D), H):
        scores = q[:, part] @ k[:, part].T / (D // H) ** 0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, part])
    return np.concatenate(heads, axis=1) @ w[f"{name}_Wo"] + w[f"{name}_bo"]


def _feed_forward(w: Arrays, layer: str, x: np.ndarray) -> np.ndarray:
    inner = np.maximum(x @ w[f"{layer}_ffn_W1"] + w[f"{layer}_ffn_b1"], 0)
    return inner @ w[f"{layer}_ffn_W2"] + w[f"{layer}_ffn_b2"]


def _norm(w: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
    return scaled * w[f"{name}_ln_scale"] + w[f"{name}_ln_bias"]
