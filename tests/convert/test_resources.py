"""A checkpoint of 300 MB converts in less than 1.3 times its size of memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

MEASURE = """
import resource, sys
from pathlib import Path
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options

options = Options(settings={"h": 8, "pad_id": 1, "start_id": 2, "eos_id": 3})
convert(Path(sys.argv[1]), Path(sys.argv[2]), options)
if sys.platform == "linux":  # where getrusage would count the parent before exec, too
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    parts = {
        "transformer": torch.nn.Transformer(512, 8, 6, 6, 2048, batch_first=True),
        "source_embedding": torch.nn.Embedding(30_000, 512),
        "target_embedding": torch.nn.Embedding(30_000, 512),
    }
    torch.save(torch.nn.ModuleDict(parts).state_dict(), path)
    size = path.stat().st_size
    assert size > 295e6
    command = [sys.executable, "-c", MEASURE, path, tmp_path / "out"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.3 * size
