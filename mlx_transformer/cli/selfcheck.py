"""`mlx-transformer selfcheck`: whether this machine computes what it should."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict

from mlx_transformer import device
from mlx_transformer.cli.output import show, to_json
from mlx_transformer.measuring.machine import machine
from mlx_transformer.selfcheck import findings
from mlx_transformer.selfcheck.finding import Finding

WIDTH = 64


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare this machine's GPU with its CPU: attention, dropout, logits, loss and gradients "
        "in three precisions, training, search, quantised models, memory. It takes a minute or "
        "two; the exit status is 1 if a figure is beyond its tolerance. On Linux the CPU takes "
        "the GPU's part."
    )
    parser.epilog = "example: mlx-transformer selfcheck"
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    device.launch_as_on_a_mac()
    found = list(findings() if args.json else _shown(findings()))
    failed = [finding.name for finding in found if not finding.holds]
    if args.json:
        rows = [asdict(finding) | {"holds": finding.holds} for finding in found]
        show(to_json({"passed": not failed, "machine": machine(), "findings": rows}, indent=2))
    else:
        show("\nTo paste into an issue:\n")
        for name, value in machine().items():
            show(f"{name:16} {value}")
        show(f"{'selfcheck':16} {'; '.join(['FAILED', *failed]) if failed else 'passed'}")
    return 1 if failed else 0


def _shown(found: Iterable[Finding]) -> Iterable[Finding]:
    """The rows of the table, each as soon as it is there."""
    show(f"{'':{WIDTH}} {'figure':>9} {'at most':>9}")
    for finding in found:
        limit = "-" if finding.tolerance is None else f"{finding.tolerance:.3g}"
        verdict = "" if finding.holds else "  FAILED"
        show(f"{finding.name:{WIDTH}} {finding.figure:9.3g} {limit:>9}{verdict}")
        yield finding
