"""The CI files: they parse, and their shell steps run here as they would there."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import pgle

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
STARTERS = ROOT / "pgle" / "starters"
COMPARE = STARTERS / "ci" / "compare.sh"
WORKFLOWS = [
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    STARTERS / "github" / "pgle.yml",
]
FILES = [
    ACTION,
    *WORKFLOWS,
    STARTERS / "ci" / "gitlab-ci.yml",
    STARTERS / "kubernetes" / "pgle-jobset.yaml",
]


def write_run(folder: Path, level: float) -> str:
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"step": i, "step_time_s": level * (1 + 0.001 * (i * 7 % 5))})
        for i in range(60)
    ]
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert all(isinstance(part, dict) for part in yaml.safe_load_all(path.read_text()))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow or of the action."""
    found = yaml.safe_load(path.read_text())
    jobs = [found["runs"]] if "runs" in found else list(found["jobs"].values())
    return [step for job in jobs for step in job.get("steps", [])]


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_foreign_actions_are_pinned_by_commit(path: Path) -> None:
    used = [step["uses"] for step in steps_of(path) if "uses" in step]
    assert all(
        re.fullmatch(r"\./.*|[\w-]+/[\w/-]+@[0-9a-f]{40}", name) for name in used
    ), used


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_no_expression_reaches_a_shell(path: Path) -> None:
    assert not [step["run"] for step in steps_of(path) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    rights = [name for name, job in found["jobs"].items() if "permissions" in job]
    assert rights == [] or path.name == "release.yml"  # tests/test_release.py
    assert "pull_request_target" not in (found.get("on") or found[True])
    checkouts = [
        step for step in steps_of(path) if "actions/checkout@" in step.get("uses", "")
    ]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_pull_request_never_writes_the_baseline() -> None:
    saving = [
        step for step in steps_of(ACTION) if "cache/save@" in step.get("uses", "")
    ]
    assert [step["if"] for step in saving] == [
        "inputs.save-baseline == 'true' && github.event_name != 'pull_request'"
    ]


def test_each_hardware_job_and_use_has_its_own_baseline_and_report() -> None:
    keys = [
        step["with"]["key"]
        for step in steps_of(ACTION)
        if "cache/" in step.get("uses", "")
    ]
    assert len(set(keys)) == 1
    assert all(
        word in keys[0]
        for word in (
            "hardware.outputs.hardware",
            "github.job",
            "github.action",
            "run_id",
        )
    )
    report = next(
        step["env"]["REPORT"] for step in steps_of(ACTION) if step["name"] == "Compare"
    )
    assert report == next(
        step["with"]["path"]
        for step in steps_of(ACTION)
        if "upload-artifact" in step.get("uses", "")
    )


def test_workflows_give_the_action_only_inputs_that_it_has() -> None:
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    used = [
        step["with"]
        for path in WORKFLOWS
        for step in steps_of(path)
        if step.get("uses", "").startswith("./")
    ]
    assert len(used) >= 3
    assert all(set(given) <= set(inputs) for given in used)


def test_outputs_of_the_action_are_those_that_the_command_writes() -> None:
    action = yaml.safe_load(ACTION.read_text())
    names = {
        re.fullmatch(
            r"\$\{\{ steps\.(?:compare|hardware)\.outputs\.(\S+) \}\}", item["value"]
        )[1]
        for item in action["outputs"].values()
    }  # type: ignore[index]
    assert names == set(action["outputs"])
    from pgle.report.compare import outputs
    from pgle.steps.compare import compare
    from pgle.steps.series import Side, Step, make_series, steady

    side = Side(
        "a",
        (steady(make_series("a", "jsonl", [Step(i, 1.0 + i % 3) for i in range(30)])),),
    )
    assert names - {"hardware"} <= set(outputs(compare(side, side), ()))


def filled(text: str, inputs: dict[str, str], folder: Path) -> str:
    """What a runner makes of the expressions in the environment of the action's steps."""
    output = folder / "output"
    known = (
        dict(line.split("=", 1) for line in output.read_text().splitlines())
        if output.exists()
        else {}
    )
    values = {
        **{f"inputs.{name}": value for name, value in inputs.items()},
        "steps.hardware.outputs.hardware": known.get("hardware", ""),
        "github.job": "step-time",
        "github.action": "pgle",
        "inputs.save-baseline == 'true' && github.event_name != 'pull_request'": inputs[
            "save-baseline"
        ],
    }
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)


def run_action(folder: Path, **inputs: str) -> tuple[int, dict[str, str], str]:
    """Run the shell steps of the action as a runner would; exit code, outputs, summary."""
    action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    values = {
        name: str(item.get("default", "")) for name, item in action["inputs"].items()
    }
    values |= {name.replace("_", "-"): value for name, value in inputs.items()}
    values["pgle"] = "./pgle"
    (folder / "pgle").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n'
    )
    (folder / "pgle").chmod(0o755)
    code = 0
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        fill = lambda text: filled(text, values, folder)
        environment = {
            **os.environ,
            **{name: fill(value) for name, value in step["env"].items()},
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        }
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=folder,
            env=environment,
            capture_output=True,
        )
        code = code or done.returncode
    written = (
        (folder / "output").read_text().splitlines()
        if (folder / "output").exists()
        else []
    )
    outputs = dict(line.split("=", 1) for line in written)
    return (
        code,
        outputs,
        (folder / "summary").read_text() if (folder / "summary").exists() else "",
    )


def test_the_action_fails_on_a_slowdown(tmp_path: Path) -> None:
    base, new = (
        write_run(tmp_path / "baseline", 0.2),
        write_run(tmp_path / "perf", 0.206),
    )
    code, outputs, summary = run_action(
        tmp_path, base=base, new=new, hardware="h100", launch_spread="0.15%"
    )
    assert code == 1
    assert (outputs["verdict"], outputs["ok"], outputs["hardware"]) == (
        "slower",
        "false",
        "h100",
    )
    assert "🔴" in summary
    found = json.loads(
        (tmp_path / "pgle-report/step-time-pgle/compare.json").read_text()
    )
    assert found["verdict"] == "slower"
    assert f"pgle analyze {new} --against {base}" in found["checks"][0]["message"]
    assert (tmp_path / "pgle-report/step-time-pgle/report.html").exists()


def test_the_action_keeps_a_baseline_per_hardware(tmp_path: Path) -> None:
    good, bad = write_run(tmp_path / "good", 0.2), write_run(tmp_path / "bad", 0.21)
    code, outputs, summary = run_action(
        tmp_path, new=good, hardware="h100", save_baseline="true"
    )
    assert (code, outputs["verdict"]) == (0, "undecided")
    assert "No baseline for h100" in summary
    assert run_action(tmp_path, new=bad, hardware="h100", save_baseline="true")[0] == 1
    assert run_action(tmp_path, new=bad, hardware="b200", save_baseline="true")[0] == 0
    stored = tmp_path / ".pgle" / "baselines" / "h100" / "steps.jsonl"
    assert stored.read_text() == (Path(good) / "steps.jsonl").read_text()


HOSTILE = (
    """x"; touch pwned; $(touch pwned) `touch pwned` '\ntouch pwned\nverdict=faster"""
)


@pytest.mark.parametrize(
    "given",
    [
        ("base", "new"),
        ("options", "launch_spread"),
        ("command", "profile"),
        ("hardware",),
    ],
)
def test_inputs_are_words_and_never_code(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    good = write_run(tmp_path / "good", 0.2)
    inputs = {
        "base": good,
        "new": good,
        "hardware": "h100",
        **dict.fromkeys(given, HOSTILE),
    }
    code, outputs, _ = run_action(tmp_path, **inputs)
    assert code == 2
    assert not list(tmp_path.rglob("pwned"))
    assert outputs.get("verdict") != "faster"


def test_hardware_is_no_path(tmp_path: Path) -> None:
    environment = {**os.environ, "NEW": "x", "HARDWARE": "../h100"}
    script = ["sh", str(COMPARE)]
    done = subprocess.run(
        script, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2


def test_the_slurm_script_runs_both_sides_with_their_flags(tmp_path: Path) -> None:
    profile = tmp_path / "profile.pbtxt"
    profile.write_text('costs { name: "a" cost_us: 1 }')
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "slow = '.pbtxt' not in os.environ['XLA_FLAGS']\n"
        "for i in range(30): print(f'step {i}: {(1.02 if slow else 1.0) * (1 + 0.001 * (i * 7 % 5)):.6f} s')\n"
    )
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\n[ "$1" = --container-image=i ] || exit 9\nshift 2\nexec "$@"\n'
    )
    srun.chmod(0o755)
    pgle = tmp_path / "pgle"
    pgle.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n')
    pgle.chmod(0o755)
    environment = {
        **os.environ, "PGLE": str(pgle), "SRUN": f"{srun} --container-image=i", "ROUNDS": "1",
        "RUN_DIR": str(tmp_path / "runs"),
    }  # fmt: skip
    command = [
        "bash",
        str(STARTERS / "slurm" / "compare.sbatch"),
        str(profile),
        sys.executable,
        str(program),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1.96 % faster" in done.stdout
    assert (tmp_path / "runs" / "report.html").exists()


def run_script(
    folder: Path, *, pgle: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    (folder / "pgle").write_text(pgle)
    (folder / "pgle").chmod(0o755)
    values = {**os.environ, "PGLE": "./pgle", "HARDWARE": "h100", **environment}
    return subprocess.run(
        ["sh", str(COMPARE)], cwd=folder, env=values, capture_output=True, text=True
    )


REAL = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pgle "$@"\n'
ECHO = "#!/bin/sh\nfor word; do printf '%s\\n' \"[$word]\"; done\n"


def test_a_folder_without_step_times_does_not_become_the_baseline(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    done = run_script(tmp_path, pgle=REAL, NEW="empty", SAVE_BASELINE="true")
    assert done.returncode == 2
    assert "empty cannot be a baseline" in done.stderr
    assert list((tmp_path / ".pgle" / "baselines").iterdir()) == []


def test_a_log_whose_name_has_spaces_becomes_the_baseline(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path / "good", 0.2)
    (tmp_path / "a run.jsonl").write_bytes(
        (Path(run_folder) / "steps.jsonl").read_bytes()
    )
    done = run_script(tmp_path, pgle=REAL, NEW="a run.jsonl", SAVE_BASELINE="true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".pgle" / "baselines" / "h100" / "a run.jsonl").exists()


@pytest.mark.parametrize(("spread", "kept"), [("0.1%", "0.2005"), ("1%", "0.2")])
def test_a_run_of_which_the_gate_cannot_tell_does_not_become_the_baseline(
    spread: str, kept: str, tmp_path: Path
) -> None:
    for level in ("0.2", "0.2005"):
        write_run(tmp_path / level, float(level))
        done = run_script(
            tmp_path, pgle=REAL, NEW=level, SAVE_BASELINE="true", LAUNCH_SPREAD=spread
        )
        assert done.returncode == 0, done.stderr
    stored = tmp_path / ".pgle" / "baselines" / "h100" / "steps.jsonl"
    assert stored.read_text() == (tmp_path / kept / "steps.jsonl").read_text()
    assert ("The baseline stays: the gate cannot tell." in done.stdout) == (
        kept == "0.2"
    )


def test_words_of_the_command_keep_their_quotes_and_are_not_expanded(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    command = """echo * "two words" $HOME $(id) 'a "b"'"""
    done = run_script(
        tmp_path,
        pgle=ECHO,
        COMMAND=command,
        PROFILE="p",
        OPTIONS='--label "the base" new',
    )
    words = done.stdout.splitlines()
    assert words[words.index("[--]") + 1 :] == [
        "[echo]",
        "[*]",
        "[two words]",
        "[$HOME]",
        "[$(id)]",
        '[a "b"]',
    ]
    assert words[words.index("[--label]") + 1] == "[the base]"


def test_a_quote_without_end_is_one_line(tmp_path: Path) -> None:
    done = run_script(tmp_path, pgle=ECHO, COMMAND="echo 'a", PROFILE="p")
    assert done.returncode == 2
    assert "COMMAND has a quote that does not end" in done.stderr


def run_steps(
    folder: Path,
    steps: list[dict[str, Any]],
    fill: Callable[[object], str],
    **shared: str,
) -> None:
    """Run the steps of a job, the action among them; in the place of GPUs is a program that only
    prints step times.
    """
    fake = (
        'case "$1" in run) mkdir -p runs/ci/baseline runs/ci/perf; printf "%s\\n" "$@" > words; '
        "for side in baseline perf; do for i in $(seq 40); do "
        "echo '{\"step\": '$i', \"step_time_s\": 0.2'$((i % 3))'}'; done > runs/ci/$side/steps.jsonl; done;; "
        f'*) exec {shlex.quote(sys.executable)} -m pgle "$@";; esac\n'
    )
    (folder / "bin").mkdir()
    for name, text in {
        "pgle": fake,
        "nvidia-smi": "echo NVIDIA H100\n",
        "python3": f"echo {pgle.__version__}\n",
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (folder / "bin" / name).chmod(0o755)
    for step in steps:
        if step.get("uses") == "./.pgle/code":
            inputs = {
                name.replace("-", "_"): fill(value)
                for name, value in step["with"].items()
            }
            assert run_action(folder, **inputs, hardware="1-nvidia-h100")[0] == 0
        if "run" not in step:
            continue
        environment = {
            **os.environ, **shared, **{name: fill(value) for name, value in step.get("env", {}).items()},
            "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=folder,
            env=environment,
            capture_output=True,
        )
        assert done.returncode == 0, (step, done.stderr)
    assert (folder / "words").read_text().splitlines()[-4:] == [
        "train.py",
        "--name",
        "two words",
        "$HOME",
    ]
    assert (folder / ".pgle/baselines/1-nvidia-h100/steps.jsonl").exists()
    assert "pgle compare" in (folder / "summary").read_text()


COMMAND = "python train.py --name 'two words' $HOME"


def test_the_workflow_of_init_runs_in_a_repository_of_its_own(tmp_path: Path) -> None:
    from pgle.run.init import init

    init("github", tmp_path)
    workflow = yaml.safe_load((tmp_path / ".github/workflows/pgle.yml").read_text())
    fill = lambda value: "true" if "${{" in str(value) else str(value)
    run_steps(
        tmp_path,
        workflow["jobs"]["step-time"]["steps"],
        fill,
        **{**workflow["env"], "COMMAND": COMMAND},
    )
    assert "hardware=1-nvidia-h100" in (tmp_path / "output").read_text()
    assert (tmp_path / "pgle-report/profile/report.html").exists()


def test_the_reusable_workflow_runs_its_steps(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/step-time.yml").read_text())
    given = workflow[True]["workflow_call"][
        "inputs"
    ]  # what YAML 1.1 takes for true is "on"
    inputs = {
        f"inputs.{name}": str(item.get("default", "")) for name, item in given.items()
    }
    inputs |= {
        "inputs.command": COMMAND,
        "inputs.setup": "setup.sh",
        "inputs.launch-spread": "0.3%",
    }
    (tmp_path / "setup.sh").write_text("touch is-set-up\n")
    fill = lambda value: re.sub(
        r"\$\{\{ (.+?) \}\}", lambda found: inputs.get(found[1], "true"), str(value)
    )
    run_steps(tmp_path, workflow["jobs"]["step-time"]["steps"], fill)
    assert (tmp_path / "is-set-up").exists()
