"""The attention weights of a model from its parameters alone: the paper's section 3 in NumPy.

One sentence, float64, one head at a time, no cache, no padding, nothing fused.
"""

from collections.abc import Sequence

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters

Weights = dict[str, list[list[np.ndarray]]]  # [kind][layer][head] -> (queries, keys)


def attention_weights(model: Transformer, source: Sequence[int], read: Sequence[int]) -> Weights:
    """What every head of a model attends to that reads source ids and has read target ids."""
    return _Sentence(model).run(source, read)


class _Sentence:
    def __init__(self, model: Transformer):
        self.config: ModelConfig = model.config
        self.parameters = {
            name: np.array(array, dtype=np.float64)
            for name, array in named_parameters(model).items()
        }
        self.weights: Weights = {"encoder": [], "decoder": [], "cross": []}

    def run(self, source: Sequence[int], read: Sequence[int]) -> Weights:
        config = self.config
        words = self.parameters["source_words.weight"]
        x = self.embed(words[source], "source_embedding")
        for i in range(config.encoder_layers):
            x = self.encoder_layer(x, f"encoder.layers.{i}")
        memory = self.norm(x, "encoder.norm") if config.encoder_final_norm else x
        vectors = self.parameters.get("target_words.weight", words)[read]
        if config.start_id is None:
            vectors[0] = 0
        y = self.embed(vectors, "target_embedding")
        for i in range(config.decoder_layers):
            y = self.decoder_layer(y, memory, f"decoder.layers.{i}")
        return self.weights

    def embed(self, words: np.ndarray, name: str) -> np.ndarray:
        d_model = self.config.d_model
        x = np.array(words) * (np.sqrt(d_model) if self.config.scale_embedding else 1)
        for position in range(len(x)):
            if self.config.positions == "learned":
                table = self.parameters[f"{name}.positions"]
                x[position] += table[position + self.config.position_offset]
                continue
            for i in range(d_model // 2):
                angle = position / 10000 ** (2 * i / d_model)
                x[position, 2 * i] += np.sin(angle)
                x[position, 2 * i + 1] += np.cos(angle)
        return x

    def encoder_layer(self, x: np.ndarray, name: str) -> np.ndarray:
        x = self.residual(x, f"{name}.self_attention", lambda y: self.self_attend(y, name, False))
        return self.residual(x, f"{name}.feed_forward", lambda y: self.feed_forward(y, name))

    def decoder_layer(self, y: np.ndarray, memory: np.ndarray, name: str) -> np.ndarray:
        y = self.residual(y, f"{name}.self_attention", lambda x: self.self_attend(x, name, True))
        y = self.residual(y, f"{name}.cross_attention", lambda x: self.cross(x, memory, name))
        return self.residual(y, f"{name}.feed_forward", lambda x: self.feed_forward(x, name))

    def residual(self, x, name, sublayer):
        if self.config.norm == "pre":
            return x + sublayer(self.norm(x, f"{name}_norm"))
        return self.norm(x + sublayer(x), f"{name}_norm")

    def self_attend(self, x: np.ndarray, name: str, causal: bool) -> np.ndarray:
        d_k, _ = self.config.head_sizes
        joined = self.linear(x, f"{name}.self_attention.qkv")
        q, k, v = np.split(joined, [self.config.h * d_k, 2 * self.config.h * d_k], axis=1)
        out = self.heads(q, k, v, "decoder" if causal else "encoder", causal)
        return self.linear(out, f"{name}.self_attention.out")

    def cross(self, y: np.ndarray, memory: np.ndarray, name: str) -> np.ndarray:
        d_k, _ = self.config.head_sizes
        q = self.linear(y, f"{name}.cross_attention.q")
        k, v = np.split(
            self.linear(memory, f"{name}.cross_attention.kv"), [self.config.h * d_k], axis=1
        )
        return self.linear(self.heads(q, k, v, "cross", False), f"{name}.cross_attention.out")

    def heads(self, q, k, v, kind, causal):
        """softmax(Q K^T / sqrt(d_k)) V of each head, the weights kept."""
        h, (d_k, _) = self.config.h, self.config.head_sizes
        layer, outputs = [], []
        for Q, K, V in zip(*(np.split(part, h, axis=1) for part in (q, k, v)), strict=True):
            scores = Q @ K.T / np.sqrt(d_k)
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            layer.append(powers / powers.sum(axis=1, keepdims=True))
            outputs.append(layer[-1] @ V)
        self.weights[kind].append(layer)
        return np.concatenate(outputs, axis=1)

    def feed_forward(self, x: np.ndarray, name: str) -> np.ndarray:
        hidden = np.maximum(self.linear(x, f"{name}.feed_forward.w_1"), 0)
        return self.linear(hidden, f"{name}.feed_forward.w_2")

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.parameters[f"{name}.weight"].T + self.parameters.get(f"{name}.bias", 0)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
        x = (x - mean) / np.sqrt(variance + self.config.norm_eps)
        return x * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]
