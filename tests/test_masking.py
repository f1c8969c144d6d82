"""What may be kept of an environment and a command line."""

import json
import os
from pathlib import Path

import pytest
from public_forms import ARGV, VARIABLES, S
from public_forms import LOGS as PUBLIC
from secret_forms import BODY, FORMS, HARMLESS, HARMLESS_ARGV, KEYS, TOKENS, secret_of

from pgle.masking import (
    Masker,
    kept_argv,
    kept_environment,
    kept_output,
    kept_text,
    mask_file,
    mask_json,
)

LOGS = Path(__file__).parent.parent / "testdata/logs"


def test_only_allowed_variables_are_kept():
    environ = {
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": "x",
        "XLA_FLAGS": "--a",
        "JAX_PLATFORMS": "cuda",
    }
    assert kept_environment(environ) == {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--a"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_API_KEY", "abc"),
        ("NCCL_AUTH_TOKEN", "abc"),
        ("JAX_COMPILATION_CACHE_DIR", "https://me:secret@host/cache"),
        ("CUDA_X", "ghp_0123456789abcdef"),
        *(
            (f"{name}_{word}", "abc")
            for name in ("XLA", "NVIDIA")
            for word in ("PASS", "DB_PW", "PIN", "COOKIE", "LICENSE")
        ),
    ],
)
def test_what_looks_like_a_credential_is_masked(name, value):
    assert kept_environment({name: value}) == {name: "***"}


def test_switches_are_not_credentials():
    name = "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY"
    assert kept_environment({name: "true"}) == {name: "true"}


def test_credentials_on_the_command_line_are_masked():
    argv = [
        "python",
        "t.py",
        "--api-key=abc",
        "--token",
        "abc",
        "--token",
        "--lr=1",
        "hf_0123456789abcdef",
    ]
    assert kept_argv(argv) == (
        "python",
        "t.py",
        "--api-key=***",
        "--token",
        "***",
        "--token",
        "--lr=1",
        "***",
    )


@pytest.mark.parametrize(
    "word",
    [
        "hf_0123456789abcdef", "ghp_0123456789abcdef", "github_pat_11ABCDEFG0123456789_abcdef", "AKIA0123456789ABCDEF",
        "sk-proj-012-abcdef-45678", "sk-ant-api03-0123456789-ab", "sk_live_0123456789abcdef", "glpat-0123-6789-abcdef",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["-k", "--login", "train.py"])
def test_tokens_are_known_by_how_they_begin(before, word):
    assert kept_argv([before, word, f"--x={word}"]) == (before, "***", "--x=***")


def test_the_value_of_a_short_option_called_k_is_masked_where_it_may_be_a_key():
    assert kept_argv(["-k", "hunter2secret00", "--key", "0123456789abcdef"]) == (
        "-k",
        "***",
        "--key",
        "***",
    )
    for words in (
        ("-k", "40"),
        ("--key", "loss"),
        ("-k", "test_a_long_name"),
        ("--key", "eval/loss"),
    ):
        assert kept_argv(words) == words


@pytest.mark.parametrize(
    "name",
    ["--wandb_key", "--api-key", "--apikey", "--hf-token", "--db-pwd", "--passphrase"],
)
def test_what_follows_the_name_of_a_credential_is_masked(name):
    assert kept_argv([name, "abcdef", f"{name}=abcdef"]) == (name, "***", f"{name}=***")


def test_tokens_of_a_model_are_not_credentials():
    argv = (
        "--max_tokens=4096",
        "--tokens",
        "x",
        "--tokenizer=/data/t.model",
        "--token=12",
        "--keys",
        "q",
    )
    assert kept_argv(argv) == argv


@pytest.mark.parametrize(
    "word",
    [
        "X=1 HF_TOKEN=abcdef python t.py",
        "Authorization: Bearer abcdefgh",
        "cd /x; password: 'abcdef'",
        "https://me:abcdef@host/x",
    ],
)
def test_credentials_inside_a_word_are_masked(word):
    assert "abcdef" not in repr(kept_argv(["bash", "-c", word]))


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_credential_is_kept(form):
    for text in (form, f"12:00:01 INFO {form}"):
        assert secret_of(form) not in kept_text(text)
    assert secret_of(form) not in repr(kept_argv([form]))
    assert secret_of(form) not in repr(kept_argv(["bash", "-c", form]))


@pytest.mark.parametrize("token", TOKENS)
def test_no_token_is_kept_whatever_its_name(token):
    for text in (f"x {token} y", f'"{token}"', f"[{token}]"):
        assert token[8:] not in kept_text(text)
    assert token[8:] not in repr(
        kept_argv(["train.py", token, f"--x={token}", "--x", token])
    )


@pytest.mark.parametrize(
    ("rule", "form"), [(rule, form) for rule, forms in PUBLIC.items() for form in forms]
)
def test_no_public_form_of_a_credential_is_kept_in_a_log(rule, form):
    secrets = (S, "FakeFake", "fake0fake", "FAKEFAKE", "0fa1e0fa", "Fake0Fak")
    hidden = [part for part in secrets if part in form]
    assert hidden, rule
    for text in (form, f"12:00:01 INFO {form}"):
        assert not any(part in kept_text(text) for part in hidden)


@pytest.mark.parametrize("words", ARGV, ids=" ".join)
def test_no_public_form_of_a_credential_is_kept_on_a_command_line(words):
    kept = repr(kept_argv(["python", "train.py", *words, "--lr=1e-3"]))
    assert not any(part in kept for part in (S, "correcthorse", "481516"))
    assert "--lr=1e-3" in kept


@pytest.mark.parametrize("name", VARIABLES)
def test_no_public_form_of_a_credential_is_kept_in_a_variable(name):
    kept = kept_environment({name: VARIABLES[name]})[name]
    assert S not in kept and "FakeFake" not in kept


@pytest.mark.parametrize("words", HARMLESS_ARGV, ids=" ".join)
def test_words_of_a_command_that_are_no_credential_stay(words):
    assert kept_argv(words) == tuple(words)


def test_what_a_command_says_before_its_password_stays():
    assert kept_text("mysql -u root -phunter22x db") == "mysql -u root -p*** db"
    assert (
        kept_text("redis-cli -h host -a hunter22x ping")
        == "redis-cli -h host -a *** ping"
    )


def test_no_line_of_the_recorded_logs_is_masked():
    logs = [path.read_bytes() for path in LOGS.rglob("*.log")]
    assert len(logs) > 10
    assert [kept_output(log) for log in logs] == logs


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_credential_stays(line):
    assert kept_text(line) == line


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("before", ["", "12:00:01 INFO "])
def test_a_private_key_is_masked_in_whatever_pieces_it_comes(key, before):
    lines = [f"{before}{line}\n".encode() for line in key.split("\n")]
    masker = Masker()
    by_line = b"".join(map(masker.kept, lines))
    assert BODY[0].encode() not in by_line + kept_output(b"".join(lines)) + kept_output(
        b" ".join(lines)
    )
    assert BODY[-1].encode() not in by_line + kept_output(b"".join(lines))
    assert BODY[0] not in kept_text(repr(key))


def test_lines_between_those_of_a_private_key_stay():
    path = b"/home/me/runs/aaaaaaaaaaaaaaaaaaaa/bbbbbbbbbbbbbbbbbbbb/profile"
    log = (
        b"I0000 latency_hiding_scheduler.cc:1] Using PGLE profile from "
        + path
        + b"\nstep 7\n"
    )
    lines = KEYS[0].encode().splitlines(keepends=True)
    kept = kept_output(b"".join([*lines[:2], log, *lines[2:3], log]))
    assert kept == b"***\n***\n" + log + b"***\n" + log


@pytest.mark.parametrize(
    "banner", ["-----BEGIN TRAINING CONFIG-----", "-----BEGIN RSA PRIVATE KEY-----"]
)
@pytest.mark.parametrize(
    "log",
    sorted(LOGS.rglob("*.log")),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_banner_without_an_end_erases_no_line_of_xla(banner, log):
    lines = log.read_bytes()
    masker = Masker()
    masker.kept(f"{banner}\n".encode())
    assert masker.kept(lines) == lines


def test_all_bytes_come_back():
    data = (
        bytes(range(256)) * 3 + "\u2028 \x85 é\r\n".encode() + b"\xff token \r\x0b\x0c"
    )
    assert kept_output(data) == data


def test_a_json_file_stays_json(tmp_path):
    path = tmp_path / "facts.json"
    found = {
        "xla_flags": "--xla_a=1 --xla_b=hf_0Fake1Fake2Fake",
        "devices": 4,
        "token": "hunter22",
        "modules": ["jit_f"],
    }
    path.write_text(json.dumps(found))
    mask_json(path)
    masked = {"xla_flags": "--xla_a=1 --xla_b=***", "token": "***"}
    assert json.loads(path.read_text()) == found | masked
    path.write_text("[" * 100_000)
    mask_json(path)
    assert path.read_text() == "[" * 100_000


@pytest.mark.parametrize("name", ["pipe", "facts.json"])
def test_what_is_no_file_is_not_masked(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    mask_file(tmp_path / name)
    mask_json(tmp_path / name)
    assert (tmp_path / name).is_fifo()


def test_a_path_is_no_personal_access_token() -> None:
    for word in ("--config_path=/a/b.x", "--sigma=0.5x", "--pinned=hosts"):
        assert kept_argv([word]) == (word,)
    assert kept_argv(["--x_pat=/a/b.x"]) == ("--x_pat=***",)


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "NCCL_SHARP_PATH"])
def test_a_path_is_no_credential(name: str) -> None:
    value = "/opt/nccl/lib64/a1b2c3d4e5"
    assert kept_text(f"{name}={value}") == f"{name}={value}"
