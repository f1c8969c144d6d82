"""The CI files: they parse, and their shell steps run here as they would there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "pgle-compare" / "action.yml"
FILES = [ACTION, *sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "scripts" / "ci" / "gitlab-ci.yml"]


def write_run(folder: Path, level: float) -> str:
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": i, "step_time_s": level * (1 + 0.001 * (i * 7 % 5))}) for i in range(60)]
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_workflows_give_the_action_only_inputs_that_it_has() -> None:
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    used = [
        step["with"]
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "pgle-compare" in step.get("uses", "")
    ]
    assert len(used) >= 3
    assert all(set(given) <= set(inputs) for given in used)


def test_outputs_of_the_action_are_those_that_the_command_writes() -> None:
    action = yaml.safe_load(ACTION.read_text())
    names = {
        re.fullmatch(r"\$\{\{ steps\.compare\.outputs\.(\S+) \}\}", item["value"])[1]
        for item in action["outputs"].values()
    }  # type: ignore[index]
    assert names == set(action["outputs"])
    from pgle.report.ci import outputs
    from pgle.steps.compare import compare
    from pgle.steps.series import Step, make_series
    from pgle.steps.side import Side
    from pgle.steps.steady import steady

    side = Side("a", (steady(make_series("a", "jsonl", [Step(i, 1.0 + i % 3) for i in range(30)])),))
    assert names - {"hardware"} <= set(outputs(compare(side, side), ()))


def run_action(folder: Path, **inputs: str) -> tuple[int, dict[str, str], str]:
    """Run the shell steps of the action as a runner would; exit code, outputs, summary."""
    action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    values = {name: str(item.get("default", "")) for name, item in action["inputs"].items()}
    values |= {name.replace("_", "-"): value for name, value in inputs.items()}
    values["pgle"] = "./pgle"
    (folder / "pgle").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n')
    (folder / "pgle").chmod(0o755)
    code = 0
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        fill = lambda text: re.sub(r"\$\{\{ inputs\.(\S+) \}\}", lambda found: values[found[1]], text)
        environment = {
            **os.environ,
            **{name: fill(value) for name, value in step["env"].items()},
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        }
        done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=folder, env=environment, capture_output=True)
        code = code or done.returncode
    outputs = dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())
    return code, outputs, (folder / "summary").read_text() if (folder / "summary").exists() else ""


def test_the_action_fails_on_a_slowdown(tmp_path: Path) -> None:
    base, new = write_run(tmp_path / "baseline", 0.2), write_run(tmp_path / "perf", 0.206)
    code, outputs, summary = run_action(tmp_path, base=base, new=new, hardware="h100", launch_spread="0.15%")
    assert code == 1
    assert (outputs["verdict"], outputs["ok"], outputs["hardware"]) == ("slower", "false", "h100")
    assert "🔴" in summary
    assert json.loads((tmp_path / "pgle-report" / "compare.json").read_text())["verdict"] == "slower"
    assert (tmp_path / "pgle-report" / "junit.xml").exists()


def test_the_action_keeps_a_baseline_per_hardware(tmp_path: Path) -> None:
    good, bad = write_run(tmp_path / "good", 0.2), write_run(tmp_path / "bad", 0.21)
    code, outputs, summary = run_action(tmp_path, new=good, hardware="h100", save_baseline="true")
    assert (code, outputs["verdict"]) == (0, "undecided")
    assert "No baseline for h100" in summary
    assert run_action(tmp_path, new=bad, hardware="h100", save_baseline="true")[0] == 1
    assert run_action(tmp_path, new=bad, hardware="b200", save_baseline="true")[0] == 0
    stored = tmp_path / ".pgle" / "baselines" / "h100" / "steps.jsonl"
    assert stored.read_text() == (Path(good) / "steps.jsonl").read_text()


def test_hardware_is_no_path(tmp_path: Path) -> None:
    environment = {**os.environ, "NEW": "x", "HARDWARE": "../h100"}
    script = [str(ROOT / "scripts" / "ci" / "compare.sh")]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2


def test_the_slurm_script_runs_both_sides_with_their_flags(tmp_path: Path) -> None:
    profile = tmp_path / "profile.pbtxt"
    profile.write_text('costs { name: "a" cost_us: 1 }')
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "slow = 'pgle_profile' not in os.environ['XLA_FLAGS']\n"
        "for i in range(30): print(f'step {i}: {(1.02 if slow else 1.0) * (1 + 0.001 * (i * 7 % 5)):.6f} s')\n"
    )
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    srun.chmod(0o755)
    pgle = tmp_path / "pgle"
    pgle.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n')
    pgle.chmod(0o755)
    environment = {
        **os.environ, "PGLE": str(pgle), "SRUN": str(srun), "ROUNDS": "1", "RUN_DIR": str(tmp_path / "runs"),
    }  # fmt: skip
    command = [str(ROOT / "scripts" / "ci" / "slurm-compare.sh"), str(profile), sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "-1.9" in done.stdout
    assert (tmp_path / "runs" / "report.html").exists()


def run_script(folder: Path, *, pgle: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "pgle").write_text(pgle)
    (folder / "pgle").chmod(0o755)
    values = {**os.environ, "PGLE": "./pgle", "HARDWARE": "h100", **environment}
    script = str(ROOT / "scripts" / "ci" / "compare.sh")
    return subprocess.run([script], cwd=folder, env=values, capture_output=True, text=True)


REAL = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n'
ECHO = "#!/bin/sh\nfor word; do printf '%s\\n' \"[$word]\"; done\n"


def test_a_folder_without_step_times_does_not_become_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run_script(tmp_path, pgle=REAL, NEW="empty", SAVE_BASELINE="true")
    assert done.returncode == 2
    assert "empty cannot be a baseline" in done.stderr
    assert list((tmp_path / ".pgle" / "baselines").iterdir()) == []


def test_a_log_whose_name_has_spaces_becomes_the_baseline(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path / "good", 0.2)
    (tmp_path / "a run.jsonl").write_bytes((Path(run_folder) / "steps.jsonl").read_bytes())
    done = run_script(tmp_path, pgle=REAL, NEW="a run.jsonl", SAVE_BASELINE="true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".pgle" / "baselines" / "h100" / "a run.jsonl").exists()


def test_words_of_the_command_keep_their_quotes_and_are_not_expanded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = """echo * "two words" $HOME $(id) 'a "b"'"""
    done = run_script(tmp_path, pgle=ECHO, COMMAND=command, PROFILE="p", OPTIONS='--label "the base" new')
    words = done.stdout.splitlines()
    assert words[words.index("[--]") + 1 :] == ["[echo]", "[*]", "[two words]", "[$HOME]", "[$(id)]", '[a "b"]']
    assert words[words.index("[--label]") + 1] == "[the base]"


def test_a_quote_without_end_is_one_line(tmp_path: Path) -> None:
    done = run_script(tmp_path, pgle=ECHO, COMMAND="echo 'a", PROFILE="p")
    assert done.returncode == 2
    assert "COMMAND has a quote that does not end" in done.stderr
