"""Sentences a second of deployed models: ours beside the engines that they were made for.

    python tools/bench_deployed.py firefox MODEL_FOLDER TEXT
    python tools/bench_deployed.py argos PACKAGE TEXT

It needs `fxtranslate` (firefox) or `ctranslate2` (argos) beside this project, and a machine that
does nothing else. Each engine translates the whole text once, warmed up by its first lines.
"""

import argparse
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlx_transformer import SearchOptions, Translator, load

WARM_UP = 16
Translate = Callable[[Sequence[str]], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["firefox", "argos"])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        engines = (firefox if args.kind == "firefox" else argos)(args, Path(folder))
        for name, translate in engines.items():
            translate(lines[:WARM_UP])
            start = time.perf_counter()
            translate(lines)
            seconds = time.perf_counter() - start
            print(f"{name}: {len(lines) / seconds:.1f} sentences/s ({seconds:.1f} s)")


def firefox(args: argparse.Namespace, _: Path) -> dict[str, Translate]:
    """Greedy, as Firefox runs it; the engine multiplies in 8 bits."""
    import fxtranslate

    def file(pattern: str) -> bytes:
        (path,) = args.model.glob(pattern)
        return path.read_bytes()

    vocabulary = file("vocab*.spm")
    engine = fxtranslate.Translator(file("model*.bin"), vocabulary, vocabulary)
    ours = load(args.model)
    return {
        "mlx-transformer, float32": lambda lines: ours.translate(lines, SearchOptions(beam=1)),
        "fxtranslate, int8": lambda lines: [engine.translate(line) for line in lines],
    }


def argos(args: argparse.Namespace, folder: Path) -> dict[str, Translate]:
    """Beam 4, length penalty 0.2, as Argos Translate runs it."""
    import ctranslate2

    with zipfile.ZipFile(args.model) as file:
        file.extractall(folder)
    (model,) = folder.glob("*/model")
    ours = load(args.model)
    options = SearchOptions(beam=4, alpha=0.2, length_penalty="plain", max_tokens=256)
    found: dict[str, Translate] = {
        "mlx-transformer, float32": lambda lines: ours.translate(lines, options)
    }
    for kind in ("float32", "int8"):
        engine = ctranslate2.Translator(
            str(model), compute_type=kind, intra_threads=args.threads, inter_threads=1
        )
        found[f"ctranslate2, {kind}"] = _with_pieces(engine, ours)
    return found


def _with_pieces(engine: Any, ours: Translator) -> Translate:
    def translate(lines: Sequence[str]) -> object:
        tokenizer = ours.tokenizer
        pieces = [tokenizer.source_tokens(ids) for ids in tokenizer.encode_source_batch(lines)]
        return engine.translate_batch(pieces, beam_size=4, length_penalty=0.2)

    return translate


if __name__ == "__main__":
    main()
