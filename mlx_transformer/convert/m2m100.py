"""M2M100 and dense NLLB models of Hugging Face transformers."""

from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Source


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(
        source, scale_embedding=True, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, max_position_embeddings=1024,
    )  # fmt: skip
    return {
        **huggingface.settings(config),
        **fairseq.POSITIONS,
        "norm": "pre",
        "max_length": config.integer("max_position_embeddings"),
    }


FAMILY = huggingface.fairseq_born("m2m100", "an M2M100 or NLLB model", "m2m_100", settings)
