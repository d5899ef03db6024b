"""Failed runs to reproduce, and what a reproduction on a GPU would print of them, in the format's own lines."""

import json
import shutil
from pathlib import Path

from diag_kit.diagnosis import diagnose
from diag_kit.findings import Diagnosis
from diag_kit.reproduced import failure_key

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, CASES = ROOT / "data" / "samples", ROOT / "tests" / "cases"
RUNS = (
    *(SAMPLES / name for name in ("accumulation-spike", "activation-spike", "healthy-run", "long-batch-outlier",
                                  "many-ranks", "not-memory")),
    *(CASES / name / "evidence" for name in ("arabert-512-scores", "eks-node3-eight-of-39gib", "granite-rank2-29814-tokens",
                                             "verl-lora-278mib-per-microbatch", "adam-frame-card-shared")),
)  # fmt: skip


def sample(name: str, into: Path) -> Path:
    """A copy of a sample's folder, to lay something beside its logs."""
    return Path(shutil.copytree(SAMPLES / name, into / name))


def state(folder: Path, **settings: object) -> Path:
    """The same run, whose training configuration states more."""
    path = folder / "train_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def printed(diagnosis: Diagnosis, verdict: str = "reproduced", *, run: str = "a1", peak: int = 38 << 30, **said: object) -> str:
    """What the script prints on a GPU, from start to verdict: as the run failed, unless ``said`` has it otherwise."""
    failure = diagnosis.failure
    facts = failure.facts if failure else {}
    asked, phase = said.pop("asked", "12.00 MiB"), said.pop("phase", failure.phase if failure else "forward")
    start = {
        "version": 1, "failure": failure_key(failure), "host": "node-a", "device": "NVIDIA A100", "gpu": "GPU-0f7ad3d1",
        "total_bytes": facts.get("total_bytes"), "small": False, "scaled": {}, "change": {}, "assumed": [], "left_out": [],
        "others_bytes": 0, "settings": {"seq_len": 1024}, "shape": {}, **said,
    }  # fmt: skip
    oom = {"phase": phase, "step": 1, "asked": asked,
           "message": f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 39.39 GiB of which "
                      "9.00 MiB is free."}  # fmt: skip
    end = {"verdict": verdict, "steps": 0 if verdict == "reproduced" else 3, "max_allocated_bytes": peak}
    records = [("start", start), *([("oom", oom)] if verdict == "reproduced" else []), ("verdict", end)]
    return "".join(
        f"diag-kit-repro {record} id={run} " + " ".join(f"{k}={json.dumps(v)}" for k, v in fields.items()) + "\n"
        for record, fields in records
        if record != "verdict" or verdict
    )


def beside(folder: Path, *outputs: str) -> Diagnosis:
    """The diagnosis of the run with these outputs laid beside its logs."""
    for number, text in enumerate(outputs):
        (folder / f"again-{number}.log").write_text(text)
    return diagnose(folder)
