"""What pgle keeps of command lines, flags and environments: nothing that looks like a credential."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"

ALLOWED = (
    r"(XLA|JAX|NCCL|CUDA|NVIDIA|TF_CPP|TF_GPU|NVTE|PGLE|OMPI_COMM_WORLD|PMI|PMIX)_\w+\Z"
    r"|SLURM_(JOB_ID|STEP_ID|PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST|JOB_NODELIST|STEP_NODELIST|GPUS_ON_NODE)\Z"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|JOB_COMPLETION_INDEX|LD_PRELOAD)\Z"
)
"""Variables that may be kept."""
_SECRET_NAME = (
    r"(?i:secret|token(?!s|i[sz])|passw|credential|auth|passphrase|pwd|(?:api|access|account|private)key"
    r"|(?<![a-z0-9])[a-z0-9]+[_-]key\b)"
)
_SECRET_VALUE = (
    r"://(?:[^/\s:@]*:[^/\s@]+|[^/\s@]{16,})@"  # a password or a token in a URL
    r"|[?&;](?i:sig|signature|x-\w+-signature)=[^\s&\"']{8,}"  # a signed URL
    r"|\b(gh[pousr]_|hf_|sk-|AKIA|ASIA|xox[abepr]-|ya29\.)\w{8,}"  # GitHub, Hugging Face, OpenAI, AWS, Slack, Google
    # some also Stripe, GitLab, Google, npm, PyPI, NVIDIA, Docker, RunPod, Vault, SendGrid
    r"|\b(sk-|[rs]k_(live|test)_|github_pat_|glpat-|AIza|npm_|pypi-|nvapi-|dckr_pat_|rpa_|hvs\.|SG\.)[\w.-]{16,}"
    r"|\blogin (?:\S+ password \S+|[0-9a-f]{40}\b)"  # a line of .netrc, 'wandb login KEY'
    r"|\beyJ[\w-]{10,}\.[\w-]+"  # a JSON web token
    r"|-----BEGIN "
    r"|\b(?i:bearer|basic) [\w+/=.-]{8,}"
    rf"|(?<!\S)--?[\w-]{{0,64}}?{_SECRET_NAME}[\w-]{{0,64}} +(?![-\d]+\b)[^\s\"']{{4,}}"  # an option
    # of a shell command or a header: NAME=value
    rf"|{_SECRET_NAME}[\w-]{{0,64}}[\"']?\s*[=:]\s*[\"']?(?!\d+\b)(?:(?i:bearer|basic|token) +)?[^\s\"']{{4,}}"
)


_PEM = rb"-----BEGIN [\s\S]*?(?:-----END [^\r\n]*|\Z)"
_HINTS = (
    rb"://[^/\s@]+@",
    rb"(?<!\S)--?[\w-]{0,64}(?:secret|token|passw|credential|auth|pwd|passphrase|key)[\w-]{0,64} ",
    *(name + rb"[\w-]{0,64}[\"']?\s*[=:]" for name in b"secret token passw credential auth pwd passphrase key".split()),
    *b"hf_ sk- ghp_ gho_ ghu_ ghs_ ghr_ akia asia xox ya29. k_live_ k_test_ aiza github_pat_ glpat- npm_ pypi-".split(),
    *b"nvapi- dckr_pat_ rpa_ hvs\\. sg\\. login ?sig &sig ;sig -signature".replace(b"?", b"\\?").split(),
    *(b"eyj", b"-----begin ", b"bearer ", b"basic "),
)
"""Of what `_SECRET_VALUE` finds, one is there in small letters; each begins with a word, which is looked for fast."""
_KEY = re.compile(r"--?k(ey)?")
_KEY_VALUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=~-]{12,}")
"""What follows an option that may be of a credential, or the k of the k best, or the name of a metric."""


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be kept, sorted, masked where they look like credentials."""
    names = sorted(name for name in environ if re.match(ALLOWED, name))
    return {name: _masked(name, environ[name]) for name in names}


def kept_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with what looks like a credential masked: ``--api-key=***``, ``--token ***``."""
    kept: list[str] = []
    mask_next = False
    for before, word in zip(("", *argv), argv, strict=False):
        name, equals, value = word.partition("=")
        if (mask_next and not word.startswith("-")) or (_KEY.fullmatch(before) and _KEY_VALUE.fullmatch(word)):
            kept.append(MASK)
        elif equals:
            kept.append(f"{name}={_masked(name, value)}")
        else:
            kept.append(_masked("", word))
        mask_next = not equals and word.startswith("-") and re.search(_SECRET_NAME, word) is not None
    return tuple(kept)


def kept_flags(text: str) -> str:
    """XLA_FLAGS with what looks like a credential masked."""
    return " ".join(kept_argv(text.split()))


def kept_text(text: str) -> str:
    """A sentence with what looks like a credential masked."""
    return re.sub(_SECRET_VALUE, MASK, text)


def kept_output(lines: bytes) -> bytes:
    """Lines that a program printed with what looks like a credential masked; every other byte as it was."""
    if not _is_suspect(lines):
        return lines
    lines, value, mask = re.sub(_PEM, MASK.encode(), lines), _SECRET_VALUE.encode(), MASK.encode()
    kept = (re.sub(value, mask, line) if _is_suspect(line) else line for line in lines.splitlines(keepends=True))
    return b"".join(kept)


def _is_suspect(text: bytes) -> bool:
    small = text.lower()
    return any(re.search(hint, small) for hint in _HINTS)


def _masked(name: str, value: str) -> str:
    harmless = value.lower() in ("true", "false", "yes", "no", "") or value.isdigit()
    if re.search(_SECRET_NAME, name) and not harmless:
        return MASK
    return MASK if re.search(_SECRET_VALUE, value) else value
