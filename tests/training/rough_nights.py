"""A night of signals on one run, which must end byte for byte as one that nothing disturbed.

    python -m tests.training.rough_nights --kills 20 --seed 1

Each kill -9 is followed by a SIGHUP or SIGTERM to the trainer that goes on. The trainer is stopped
(SIGSTOP) before a signal, so what the signal meets can be looked up: the counts are exact.
"""

import argparse
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.training.tasks import command, overrides, tiny_task, weights

STEPS_PER_KILL = 30
MOST_STEPS = 8  # that a trainer tells of before it gets a signal
SECOND_EVERY = 8  # of what was met


def rough_night(folder: Path, kills: int, seed: int) -> Counter[str]:
    """What was met how often; fails where a trainer, or the end of the night, is not as it must."""
    night = Night(folder, kills, random.Random(seed))
    for number in range(kills):
        if number == kills // 2:
            night.full_disk()
        night.disturb(signal.SIGKILL)
        night.disturb(night.draw.choice([signal.SIGHUP, signal.SIGTERM]))
    night.end()
    return night.met


class Night:
    def __init__(self, folder: Path, kills: int, draw: random.Random) -> None:
        self.draw = draw
        self.met: Counter[str] = Counter()
        self._steps = kills * STEPS_PER_KILL
        self._recipe, self._run, self._quiet = tiny_task(folder), folder / "run", folder / "quiet"
        self._start_up = self._quiet_run()

    def _quiet_run(self) -> float:
        """The run to compare with; returns how many seconds its first step took to come."""
        begin = time.monotonic()
        process = self._trainer(self._quiet)
        assert _steps_seen(process, 1) == 1
        seconds = time.monotonic() - begin
        _, said = process.communicate()
        assert process.returncode == 0, said
        return seconds

    def _trainer(self, run: Path, **options) -> subprocess.Popen[str]:
        """One that begins the run, or goes on with it."""
        settings = overrides(
            training_max_steps=self._steps,
            training_log_every=1,
            training_save_every=5,
            training_keep_last=3,
            training_average_last=3,
            validation_every=20,
            validation_sentences=0,
        )
        begun = (run / "run.toml").exists()
        args = ["--resume", run] if begun else [self._recipe, "--out", run, *settings]
        return subprocess.Popen(
            command("train", *args),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def disturb(self, chosen: signal.Signals) -> None:
        """Send a trainer a signal at a random moment: before its steps, in them, or in a save."""
        left = self._partial()  # by one that was killed
        process = self._trainer(self._run)
        aim = self.draw.choice(["start-up", "training", "training", "saving"])
        trains = False
        if aim == "start-up":
            time.sleep(self.draw.uniform(0, self._start_up))
        else:
            trains = _steps_seen(process, self.draw.randint(1, MOST_STEPS)) > 0
            while aim == "saving" and process.poll() is None and self._partial() <= left:
                time.sleep(0.0002)
            time.sleep(self.draw.uniform(0, 0.01))
        moment = self._moment(trains, left) if _stopped(process) else "finished"
        self.met[f"{chosen.name} met {moment}"] += 1
        seconds = self.met["second trainer refused"]
        if moment in ("training", "saving") and self.met.total() > SECOND_EVERY * seconds:
            self._second_trainer(process.pid)
        if moment != "finished":
            process.send_signal(chosen)
            process.send_signal(signal.SIGCONT)
        _, said = process.communicate()
        assert "Traceback" not in said, said
        saves = chosen != signal.SIGKILL and moment in ("training", "saving")
        allowed = {0, 128 + chosen} if saves else {0, 128 + chosen, -chosen}
        assert process.returncode in allowed, f"{process.returncode} in {moment}: {said}"

    def _moment(self, trains: bool, left: set[tuple[Path, int]]) -> str:
        """What the stopped trainer is doing."""
        if not trains:
            return "start-up"
        if self._partial() - left:
            return "saving"
        last = self._run / "checkpoints" / f"step-{self._steps:08d}"
        return "the end" if last.exists() else "training"

    def _partial(self) -> set[tuple[Path, int]]:
        """What is being written, or was left half written, with its time."""
        found = [*self._run.glob(".*.partial"), *self._run.glob("checkpoints/.*.partial")]
        times = ((path, _changed(path)) for path in found)
        return {(path, changed) for path, changed in times if changed is not None}

    def _second_trainer(self, first: int) -> None:
        process = self._trainer(self._run)
        _, said = process.communicate()
        assert process.returncode == 1, said
        assert f"is being trained by process {first}: wait for it, or stop it" in said
        self.met["second trainer refused"] += 1

    def full_disk(self) -> None:
        """No file may grow beyond a part of the largest one, so that one cannot be written."""
        largest = max(len(content) for content in weights(self._quiet).values())
        room = self.draw.randrange(largest // 2, largest)
        process = self._trainer(
            self._run, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        )
        _, said = process.communicate()
        assert process.returncode == 1 and "Traceback" not in said, said
        assert "could not save" in said, said
        self.met["full disk said"] += 1

    def end(self) -> None:
        """Let it finish, and compare."""
        process = self._trainer(self._run)
        _, said = process.communicate()
        assert process.returncode == 0, said
        rough, quiet = weights(self._run), weights(self._quiet)
        assert rough.keys() == quiet.keys()
        assert [name for name in quiet if rough[name] != quiet[name]] == []


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # it has its place by now
        return None


def _steps_seen(process: subprocess.Popen[str], count: int) -> int:
    """Wait until the trainer has told of so many steps, or ended; how many it told of."""
    assert process.stderr is not None
    seen = 0
    while seen < count and (line := process.stderr.readline()):
        seen += line.startswith("step ")
    return seen


def _stopped(process: subprocess.Popen[str]) -> bool:
    """Stop a process where it is; False: it has ended."""
    process.send_signal(signal.SIGSTOP)
    if process.returncode is not None:
        return False
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return True
    process.returncode = os.waitstatus_to_exitcode(status)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup leaves it ignored, and trainers inherit it
    with tempfile.TemporaryDirectory() as folder:
        met = rough_night(Path(folder), args.kills, args.seed)
    for what, count in sorted(met.items()):
        print(f"{count:4} {what}")
    print("every checkpoint and model has the bytes of the undisturbed run")


if __name__ == "__main__":
    main()
