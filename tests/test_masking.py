"""What may be kept of an environment and a command line."""

import pytest

from pgle.masking import MASK, kept_argv, kept_environment, kept_flags, kept_output, kept_text


def test_only_allowed_variables_are_kept():
    environ = {"HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x", "XLA_FLAGS": "--a", "JAX_PLATFORMS": "cuda"}
    assert kept_environment(environ) == {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--a"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_API_KEY", "abc"),
        ("NCCL_AUTH_TOKEN", "abc"),
        ("JAX_COMPILATION_CACHE_DIR", "https://me:secret@host/cache"),
        ("CUDA_X", "ghp_0123456789abcdef"),
    ],
)
def test_what_looks_like_a_credential_is_masked(name, value):
    assert kept_environment({name: value}) == {name: "***"}


def test_switches_are_not_credentials():
    name = "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY"
    assert kept_environment({name: "true"}) == {name: "true"}


def test_credentials_on_the_command_line_are_masked():
    argv = ["python", "t.py", "--api-key=abc", "--token", "abc", "--token", "--lr=1", "hf_0123456789abcdef"]
    assert kept_argv(argv) == ("python", "t.py", "--api-key=***", "--token", "***", "--token", "--lr=1", "***")


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
    assert kept_argv(["-k", "hunter2secret00", "--key", "0123456789abcdef"]) == ("-k", "***", "--key", "***")
    for words in (("-k", "40"), ("--key", "loss"), ("-k", "test_a_long_name"), ("--key", "eval/loss")):
        assert kept_argv(words) == words


@pytest.mark.parametrize("name", ["--wandb_key", "--api-key", "--apikey", "--hf-token", "--db-pwd", "--passphrase"])
def test_what_follows_the_name_of_a_credential_is_masked(name):
    assert kept_argv([name, "abcdef", f"{name}=abcdef"]) == (name, "***", f"{name}=***")


def test_tokens_of_a_model_are_not_credentials():
    argv = ("--max_tokens=4096", "--tokens", "x", "--tokenizer=/data/t.model", "--token=12", "--keys", "q")
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


def test_flags_stay_but_for_credentials():
    assert kept_flags("--xla_a=1 --xla_dump_to=https://me:abc@host") == "--xla_a=1 --xla_dump_to=***"
    assert kept_flags("--xla_gpu_x=a,b  --xla_tokens=5") == "--xla_gpu_x=a,b --xla_tokens=5"


@pytest.mark.parametrize(
    "line",
    [
        "GET https://me:hunter2@host/x", "Authorization: Bearer abcdef012345", "authorization: Basic YWxhZGRpbjo=",
        "SESSION eyJhbGciOiJIUzI1NiJ9.eyJzdWIi", "-----BEGIN RSA PRIVATE KEY-----",
        *(f"{name}=hunter22" for name in ("secret", "TOKEN", "passwd", "credential", "AUTH", "passphrase", "DB_PWD")),
        *(f'"{name}": "hunter22"' for name in ("apikey", "accessKey", "privatekey", "wandb_key", "ssh-key")),
        *(f"x {begin}0123456789ab" for begin in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "hf_", "sk-", "AKIA", "ASIA")),
        *(f"x xox{letter}-0123456789ab" for letter in "abepr"), "x ya29.0123456789ab",
        *(f"x {begin}0123-456789-abcdef" for begin in ("sk-", "sk_live_", "rk_live_", "sk_test_", "rk_test_")),
        *(f"x {begin}0123-456789-abcdef" for begin in ("github_pat_", "glpat-", "AIza", "npm_", "pypi-")),
    ],
)  # fmt: skip
def test_a_programs_output_is_masked_as_any_other_text(line):
    assert MASK in kept_text(line)
    assert MASK.encode() in kept_output(f"step 1\n{line}\nstep 2\n".encode())
