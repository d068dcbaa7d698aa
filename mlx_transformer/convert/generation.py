"""transformers' generation_config.json as options of our search.

Names and meanings differ in places: lengths there count the start token, and a score there is the
log-probability divided by length^length_penalty.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Source
from mlx_transformer.inputs.printable import shown

# Settings that change what is written and that our search does not have, with what turns them off.
NOT_SUPPORTED: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "guidance_scale": (1,),
    "sequence_bias": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
}
Check = Callable[[Any], bool]


def _whole(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _number(least: float, most: float) -> Check:
    return lambda value: type(value) in (int, float) and least <= value <= most


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _lists_of_ids(value: object) -> bool:
    lists = value if isinstance(value, list) else [None]
    return all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in lists)


# What a setting may be; a search cannot do with anything else.
USABLE: dict[str, Check] = {
    "num_beams": _whole(1, 1000),
    "length_penalty": _number(0, 100),
    "early_stopping": lambda value: _flag(value) or value == "never",
    "max_length": _whole(2, 1_000_000),
    "max_new_tokens": _whole(1, 1_000_000),
    "min_length": _whole(0, 1_000_000),
    "min_new_tokens": _whole(0, 1_000_000),
    "no_repeat_ngram_size": _whole(0, 1_000_000),
    "bad_words_ids": _lists_of_ids,
    "do_sample": _flag,
    "temperature": _number(0.001, 1000),
    "top_k": _whole(0, 1_000_000),
    "top_p": _number(math.ulp(0), 1),
    "renormalize_logits": _flag,
}


def generation_of_whole_lines(source: Source) -> dict[str, Any]:
    """Of a model that summarises, corrects or answers: it reads a line whole."""
    return {**generation(source), "whole_lines": True}


def generation(source: Source) -> dict[str, Any]:
    """The fields of `SearchOptions` that the checkpoint's settings mean.

    Models from before there was such a file have them in config.json.
    """
    checkpoint = source.checkpoint
    said = checkpoint.fields("generation_config.json") or checkpoint.fields("config.json")
    _warn_of_unsupported(said)
    config = _usable(said, checkpoint.fields("config.json").get("vocab_size"))
    beam = config.integer("num_beams", default=1)
    found = {
        "beam": beam,
        "alpha": config.number("length_penalty", default=1),
        "length_penalty": "plain",
        "stop": _stop(config.get("early_stopping")),
        **_lengths(config),
        **_banned(config),
        **_given(config),
        **(_sampling(config) if beam == 1 and config.flag("do_sample", default=False) else {}),
        "no_repeat_ngram": config.integer("no_repeat_ngram_size", default=0) or None,
        "renormalize": config.flag("renormalize_logits", default=False),
    }
    return {name: value for name, value in found.items() if value is not None}


def _warn_of_unsupported(config: Fields) -> None:
    asked = [
        name
        for name, off in NOT_SUPPORTED.items()
        if config.get(name) is not None and config[name] not in off
    ]
    if asked:
        warnings.warn(
            f"the model wants {', '.join(asked)} when it writes: the search does without",
            stacklevel=3,
        )


def _usable(said: Fields, words: object) -> Fields:
    """The settings without those that nobody could search with: a model is more than them."""
    fits = dict(USABLE)
    if isinstance(words, int):
        known = _whole(0, words - 1)
        fits["forced_bos_token_id"] = known
        fits["bad_words_ids"] = lambda lists: (
            _lists_of_ids(lists) and all(known(i) for ids in lists for i in ids)
        )
    odd = [name for name in fits if said.get(name) is not None and not fits[name](said[name])]
    for name in odd:
        warnings.warn(
            f"the model wants {name} {shown(said[name])} when it writes, which cannot be: the "
            "search does without",
            stacklevel=3,
        )
    return Fields({name: value for name, value in said.items() if name not in odd})


def _stop(early_stopping: object) -> str:
    if early_stopping == "never":
        return "certain"
    return "full" if early_stopping is True else "likely"


def _lengths(config: Fields) -> dict[str, Any]:
    """Without the start token. No limit: ours, not the twenty words of transformers."""
    longest = config.integer("max_length", default=0) - 1
    shortest = max(config.integer("min_length", default=0) - 1, 0)
    return {
        "max_tokens": config.integer("max_new_tokens", default=max(longest, 0)) or None,
        "min_tokens": config.integer("min_new_tokens", default=shortest),
    }


def _banned(config: Fields) -> dict[str, Any]:
    """A ban on the end of sentence alone means nothing there."""
    found = config.get("bad_words_ids")
    phrases = [tuple(ids) for ids in found if ids] if isinstance(found, list) else []
    return {
        "ban_padding": False,
        "banned": tuple(ids[0] for ids in phrases if len(ids) == 1 and ids != (_end(config),)),
        "banned_phrases": tuple(ids for ids in phrases if len(ids) > 1),
    }


def _given(config: Fields) -> dict[str, Any]:
    first = config.get("forced_bos_token_id")
    return {
        "first_word": first if isinstance(first, int) else None,
        "end_at_limit": _end(config) is not None
        and config.get("forced_eos_token_id") in (_end(config), [_end(config)]),
    }


def _end(config: Fields) -> object:
    """The first, where there are several."""
    match config.get("eos_token_id"):
        case [first, *_]:
            return first
        case end:
            return end


def _sampling(config: Fields) -> dict[str, Any]:
    return {
        "sample": True,
        "temperature": config.number("temperature", default=1.0),
        "top_k": config.integer("top_k", default=50) or None,
        "top_p": config.number("top_p", default=1.0),
    }
