"""Translating side by side with transformers and CTranslate2: same weights, same sentences.

The weights are random, so nothing says when a translation ends. Every system is told instead: each
translation becomes as long as the references are on average, no more and no less.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from bench_sides import (
    THREADS,
    Answer,
    Side,
    Works,
    in_turn,
    parser,
    prepared_multi30k,
    serve,
    table,
    where_and_when,
    write_section,
)

BEAM = 4
BATCH_TOKENS = 1024  # of the sources, padding included: what this project takes at once
TITLES = {
    "mlx": "this project",
    "transformers": "transformers",
    "float32": "CTranslate2",
    "int8": "CTranslate2 int8",
}
NOTE = (
    "Multi30k test2016, vocabulary {0.vocabulary:,}, random weights: {0.sentences:,} sentences "
    "with beam 4 in batches of like length and 1,024 source tokens, or {0.single} one by one, "
    "greedily; all write equally many tokens. transformers and CTranslate2 read what "
    "`mlx-transformer export --format marian` wrote."
)
COMMANDS = {
    "mlx-transformer --help": ["--help"],
    'mlx-transformer translate "Hello."': ["translate", "Hello."],
}


Ids = list[int]
Translate = Callable[[list[Ids], int, int], list[Ids]]  # sources, beam and length -> translations


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--preset", default="base", help="(default: base)")
    options.add_argument("--sentences", type=int, default=1000, help="(default: all 1,000)")
    options.add_argument("--single", type=int, default=20, help="one by one (default: 20)")
    options.set_defaults(rounds=3)
    args = options.parse_args()
    if args.worker:
        serve(SIDES, *args.worker)
        return
    if args.quick:
        args.preset, args.vocabulary, args.rounds = "tiny", 300, 1
        args.sentences, args.single = 8, 2

    with TemporaryDirectory() as temporary:
        workspace = Path(temporary)
        prepare_workspace(workspace, args)
        many, single = compare(workspace, args.rounds)
    batches = [f"{sum(map(len, ids)) / seconds:,.0f}" for seconds, ids in many]
    latency = [f"{1000 * seconds / len(ids):,.0f}" for seconds, ids in single]
    rows = [
        row(f"`{args.preset}`, beam {BEAM}, tokens/s", batches, many),
        row(f"`{args.preset}`, one sentence, greedy, ms", latency, single),
    ]
    commands = [[f"`{name}`", seconds_of_command(words)] for name, words in COMMANDS.items()]
    report = "\n\n".join(
        [
            where_and_when("torch", "transformers", "ctranslate2"),
            f"{NOTE.format(args)} {same_ids(many)}",
            table(["translate", *TITLES.values()], rows),
            table(["whole process, warm", "seconds"], commands),
        ]
    )
    print(report)
    if args.write:
        write_section(args.write, "Translation", report)
    print(f"beam {BEAM}: {summary(many)}; one sentence, greedy: {summary(single)}")


def compare(workspace: Path, rounds: int) -> tuple[list[Answer], list[Answer]]:
    """Answers of all sides: for batches with a beam, and for single sentences, greedily."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(__file__, name, workspace)) for name in TITLES]
        many = in_turn([(side, "beam") for side in sides], rounds, "beam")
        single = in_turn([(side, "single") for side in sides], rounds, "one sentence")
    return many, single


def row(title: str, cells: Sequence[str], answers: Sequence[Answer]) -> list[str]:
    """The figures of all sides, those of others with our speed relative to theirs."""
    theirs = zip(cells[1:], ratios(answers), strict=True)
    return [title, cells[0], *(f"{cell} ({ratio})" for cell, ratio in theirs)]


def ratios(answers: Sequence[Answer]) -> list[str]:
    ours, *others = (answer.seconds for answer in answers)
    return [f"{theirs / ours:.2f}x" for theirs in others]


def summary(answers: Sequence[Answer]) -> str:
    names = list(TITLES.values())[1:]
    return ", ".join(f"{r} {name}" for r, name in zip(ratios(answers), names, strict=True))


def same_ids(answers: Sequence[Answer]) -> str:
    """How many translations of the others are ours, word for word."""
    ours, *others = (answer.result for answer in answers)
    shares = [mean(a == b for a, b in zip(ours, theirs, strict=True)) for theirs in others]
    names = list(TITLES.values())[1:]
    listed = ", ".join(f"{share:.1%} of {name}" for share, name in zip(shares, names, strict=True))
    return f"Translations equal to ours, id for id: {listed}."


def seconds_of_command(words: Sequence[str]) -> str:
    """The median time of a whole process, or that it cannot be had."""
    command = [str(Path(sys.executable).with_name("mlx-transformer")), *words]
    times = []
    for _ in range(6):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"failed: {done.stderr.strip()}"
        times.append(time.perf_counter() - start)
    return f"{median(times[1:]):.2f}"


def prepare_workspace(workspace: Path, args: argparse.Namespace) -> None:
    """The model for every side, and what to translate."""
    import mlx.core as mx

    from mlx_transformer import config
    from mlx_transformer.convert.export_marian import export_marian
    from mlx_transformer.data.corpus import ParallelCorpus
    from mlx_transformer.model import Transformer
    from mlx_transformer.storage import save_model
    from mlx_transformer.tokenizer import load_tokenizer

    prepared = prepared_multi30k(args.data, workspace, args.vocabulary)
    corpus = ParallelCorpus.open(prepared, "test")
    mx.random.seed(0)
    model = Transformer(config.preset(args.preset, vocab_size=corpus.source_vocab_size))
    # Without vectors pad and start are never among the best words: nobody need suppress them.
    model.source_words.weight[mx.array([model.config.pad_id, model.config.start_id])] = 0
    save_model(model, workspace)
    marian = workspace / "marian"
    marian.mkdir()
    export_marian(model, load_tokenizer(prepared), marian)
    converter = Path(sys.executable).with_name("ct2-transformers-converter")
    words = ["--model", str(marian), "--output_dir", str(workspace / "ctranslate2")]
    subprocess.run([converter, *words], check=True, stdout=subprocess.DEVNULL)
    chosen = range(min(args.sentences, len(corpus)))
    sources = [[*corpus.source[i].tolist(), model.config.eos_id] for i in chosen]
    work = {
        "sources": sources,
        "single": sources[: args.single],
        "length": round(mean(len(corpus.target[i]) + 1 for i in chosen)),
    }
    (workspace / "work.json").write_text(json.dumps(work))


# The sides


def works(workspace: Path, translate: Translate) -> Works:
    """All sentences with a beam; some one by one, without."""
    work = json.loads((workspace / "work.json").read_text())
    length = work["length"]

    def beam() -> list[Ids]:
        found = translate(work["sources"], BEAM, length)
        assert {len(ids) for ids in found} == {length}, "translations of other lengths"
        return found

    def single() -> list[Ids]:
        return [translate([source], 1, length)[0] for source in work["single"]]

    return {"beam": beam, "single": single}


def load_mlx(workspace: Path) -> Works:
    from mlx_transformer.measuring import benchmark
    from mlx_transformer.storage import load_model

    search = cache(partial(benchmark.fixed_length_search, load_model(workspace)))
    return works(
        workspace,
        lambda sources, beam, length: benchmark.translate(search(length, beam), sources),
    )


def load_transformers(workspace: Path) -> Works:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(THREADS)
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    model: Any = transformers.MarianMTModel.from_pretrained(workspace / "marian")
    model.to(device).eval()
    settings = model.generation_config
    settings.bad_words_ids = settings.max_length = None
    pad = settings.pad_token_id

    @torch.inference_mode()
    def translate(sources: list[Ids], beam: int, length: int) -> list[Ids]:
        found: dict[int, Ids] = {}
        for batch in batches(sources):
            longest = len(sources[batch[0]])
            rows = [sources[i] + [pad] * (longest - len(sources[i])) for i in batch]
            source = torch.tensor(rows, device=device)
            ids = model.generate(
                input_ids=source,
                attention_mask=source != pad,
                num_beams=beam,
                min_new_tokens=length,
                max_new_tokens=length,
            )
            found |= zip(batch, ids[:, 1:].tolist(), strict=True)  # without the start token
        return [found[i] for i in range(len(sources))]

    return works(workspace, translate)


def batches(sources: list[Ids]) -> Iterator[list[int]]:
    """Indices of sentences of like length, longest first."""
    waiting = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    while waiting:
        size = max(1, BATCH_TOKENS // len(sources[waiting[0]]))
        yield waiting[:size]
        waiting = waiting[size:]


def load_ctranslate2(workspace: Path, compute_type: str) -> Works:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(workspace / "ctranslate2"),
        compute_type=compute_type,
        inter_threads=1,
        intra_threads=THREADS,
    )
    ids = json.loads((workspace / "marian" / "vocab.json").read_text(encoding="utf-8"))
    pieces = list(ids)

    def translate(sources: list[Ids], beam: int, length: int) -> list[Ids]:
        results = translator.translate_batch(
            [[pieces[i] for i in source] for source in sources],
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
            beam_size=beam,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return works(workspace, translate)


SIDES: dict[str, Callable[[Path], Works]] = {
    "mlx": load_mlx,
    "transformers": load_transformers,
    "float32": partial(load_ctranslate2, compute_type="float32"),
    "int8": partial(load_ctranslate2, compute_type="int8"),
}

if __name__ == "__main__":
    main()
