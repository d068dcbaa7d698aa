"""A checkpoint of 300 MB: memory under 1.3 times its size, time within 3 copies of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MEASURE = """
import json, resource, shutil, sys, time
from pathlib import Path
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options

path, out = Path(sys.argv[1]), Path(sys.argv[2])
options = Options(settings={"h": 8, "pad_id": 1, "start_id": 2, "eos_id": 3})

def seconds(work, *args):
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start

times = [
    (seconds(convert, path, out / str(i), options), seconds(shutil.copyfile, path, out / "copy"))
    for i in range(4)
]
if sys.platform == "linux":  # where getrusage would count the parent before exec, too
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([min(t[0] for t in times), min(t[1] for t in times), peak]))
"""


@pytest.mark.slow
def test_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    parts = {
        "transformer": torch.nn.Transformer(512, 8, 6, 6, 2048, batch_first=True),
        "source_embedding": torch.nn.Embedding(30_000, 512),
        "target_embedding": torch.nn.Embedding(30_000, 512),
    }
    torch.save(torch.nn.ModuleDict(parts).state_dict(), path)
    size = path.stat().st_size
    assert size > 295e6
    command = [sys.executable, "-c", MEASURE, path, tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    convert, copy, peak = json.loads(run.stdout)
    assert peak < 1.3 * size
    assert convert < 3 * copy, f"converted in {convert:.2f} s, copied in {copy:.2f} s"
