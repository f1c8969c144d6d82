"""The one place that decides what pgle keeps of command lines, flags, environments and output: no credentials.

Beginnings of tokens are those of gitleaks' rules (github.com/gitleaks/gitleaks, config/gitleaks.toml, MIT License).
docs/run-directory.md names forms that no rule finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

MASK = "***"

ALLOWED = (
    r"(XLA|JAX|NCCL|CUDA|NVIDIA|TF_CPP|TF_GPU|NVTE|PGLE|OMPI_COMM_WORLD|PMI|PMIX)_\w+\Z"
    r"|SLURM_(JOB_ID|STEP_ID|PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST|JOB_NODELIST|STEP_NODELIST|GPUS_ON_NODE)\Z"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|JOB_COMPLETION_INDEX|LD_PRELOAD)\Z"
)
"""Variables that may be kept."""

# Names. Those of the first kind have any value; of the second, a number is a count of tokens or the like; those of the
# third are the end of a name.
_ANY = r"(?i:secret(?!ion)|passw|passphrase|credential|pwd|cookie|licen[cs]e|webhook)[\w-]{0,64}"
_KEYED = (
    r"(?i:token(?!s|i[sz])|auth(?!or(?!iz))|(?:api|access|account|private|encryption|signing|master|shared|ssh)[_-]?key(?!s)"
    r"|(?<![a-z0-9])(?!(?:p?rng|random|cache|sort|dict|group|public|primary|top|k)[_-])(?:[a-z0-9]+[_-]){1,6}key\b)[\w-]{0,64}"
)
_LAST = r"(?:(?<![A-Za-z0-9])(?i:pass|pw|pin|pat|creds?|sid|otp|jwt)|(?<=[a-z])(?:Pass|Pw|Pin))\d?(?![\w-])"

# From a name to its value. Quotes may be those of JSON inside JSON; colours may come between.
_QUOTES = r"(?:\x1b\[[\d;]*m|[\\\"'`])*"
_SIGN = r"(?:: ?\w+ ?=|=>|:=|->|[=:](?!=)|>|[\"']? value=|(?i:%3[AD]))"
_IS = rf"(?:{_QUOTES}(?:%22)?\]?[ \t]*{_SIGN}[ \t]*[\[({{]?{_QUOTES}|[\\]*[\"'],[ \t]*b?[\\]*[\"'])"
_END = r"(?![^\s\"',;)\]}\\<>])"
_NO_SWITCH = rf"(?!(?i:none|null|nil|true|false|yes|no|unset|enabled|disabled|\**){_END})"
_NO_NUMBER = rf"(?![-+]?[\d.,]*\d(?:[eE][-+]?\d+)?%?(?:/\w+)?{_END})"
_SCHEME = r"(?:(?i:bearer|basic|digest|token) +|(?:SecretStr\(|b)?[\\]*[\"'])?"
_WORD = r"[^\s\"'<>\x1b]+"
_VALUE = rf"{_SCHEME}(?:(?<=[\"'])(?:(?![\\]*[\"']).)+|{_WORD})"
_OPTION = r"(?<![^\s\"'])--?[\w-]{0,64}?"

_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

_TOKENS = (
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glcbt- gldt- glffct- glft- glimt- glagent- gloas- glptt- "
    "glrt- glsoat- hf_ api_org_ sk- sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ xoxa- xoxb- "
    "xoxe. xoxe- xoxo- xoxp- xoxr- xoxs- xapp- ya29. AIza npm_ pypi- nvapi- dckr_pat_ dckr_oat_ hvb. hvs. "
    "SG. AKCp LTAI ABSK A3- ops_ p8e- AGE-SECRET-KEY-1 doo_v1_ dop_v1_ dor_v1_ dp.pt. dt0c01. duffel_ "
    "EZAK EZTK FLWSECK_ fo1_ fm1a_ fm1r_ fm2_ fio-u- glc_ glsa_ GR1348941 HRKU-AA lin_api_ ntn_ pplx- "
    "pscale_ PMAK- pnu_ rdme_ rubygems_ shippo_ shpat_ shpca_ shppa_ shpss_ sgp_ sntrys_ sntryu_ sq0atp- "
    "xkeysib- gsk_ s-s4t2 sm_aat_ sm_pat_ sm_sat_ "
)
"""How tokens begin; what follows holds a digit or a capital letter, else it may be any name."""
_TOKENS_OF_A_FORM = {
    "akia asia abia acca": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{8,}",
    "eyj eyk": r"ey[JK][\w-]{10,2000}\.[\w-]+",
    "dapi": r"dapi[a-f0-9]{32}",
    "key-": r"key-[0-9a-f]{32}\b",
    "rpa_": r"rpa_[A-Z0-9]{16,}",
    "pul-": r"pul-[a-f0-9]{40}",
    "sha256~": r"sha256~[\w-]{43}",
    "q~": r"\w{3}\dQ~[\w.~-]{31,}",
    "atlasv1": r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{16,}",
}

_RULES: Sequence[tuple[str, str]] = (
    (
        "private",
        rf"{_PEM}(?:.{{0,9000}}?-----END [A-Z0-9 ]+-----|(?:[\w+/=]|[\\]+[nr]|[ ](?=[A-Za-z0-9+/=]{{32}}))*)",
    ),
    ("://", r"://(?:[^/\s:@\"']*:[^/\s\"']+|[^/\s\"'@]{16,})@(?=[\w.\[-])"),
    (
        "?sig &sig ;sig &x- ?x- ?key= &key= code=",
        r"[?&;](?i:sig|signature|key|code|x-\w+-\w+)=[^\s&\"']{8,}",
    ),
    (
        "hooks webhook telegram spaces/",
        r"(?i:hooks\.(?:slack|zapier)\.com/|/api/webhooks/|/webhookb2/|api\.telegram\.org/bot\d+:"
        r"|chat\.googleapis\.com/v1/spaces/)[^\s\"'<>]+",
    ),
    (
        "authorization cookie x-api x-auth x-goog",
        r"(?i:authorization|cookie|x-(?:api|auth|goog-api)-(?:key|token))[\\\"']*: ?[\[\\\"']*"
        rf"{_NO_SWITCH}(?!{_SCHEME}\*\*\*)[^\r\n\"']+",
    ),
    (
        "secret passw passphrase credential pwd cookie licen webhook token auth key",
        rf"(?:{_ANY}{_IS}|{_KEYED}{_IS}{_NO_NUMBER}){_NO_SWITCH}{_VALUE}"
        rf"|{_OPTION}(?:{_ANY}[ \t]+|{_KEYED}[ \t]+{_NO_NUMBER})(?!-){_NO_SWITCH}{_VALUE}"
        r"|(?i:setenv \w*(?:secret|token|passw|key)\w* +)\S+"
        r"|(?i:password|passwd|passphrase|secret|token|key) (?i:is|was|set to|changed to) [\"'`]?"
        r"(?!(?i:not|too|in|be|the|an?|set|used|of|at|as|for|valid|invalid|missing|required|ok|empty|none)\b)[^\s\"'`]{4,}",
    ),
    (
        "pass pw pin pat cred sid otp jwt",
        rf"{_LAST}(?:(?=[\"'=\\\x1b%>]|: ?\w+ ?=){_IS}|(?:(?<=[_-]\w{{3}})|(?<=[_-]\w{{4}})): ?){_NO_SWITCH}{_VALUE}"
        rf"|{_OPTION}(?<=[_-]){_LAST}[ \t]+(?!-){_NO_SWITCH}(?:pass:)?{_WORD}|\bsshpass -p ?\S+",
    ),
    (
        "login",
        r"\blogin (?:\S+ password \S+|[0-9a-f]{40}\b)|\blogin\((?:[^)\n]{0,80}?key *= *)?[\"'][\w./+=-]{12,}[\"']",
    ),
    ("bearer basic", r"\b(?i:bearer|basic) (?=[a-z+/.-]*[\dA-Z=])[\w+/=.-]{8,}"),
    (
        "-u --user",
        r"(?<![\w-])(?:-u[ =]?|--user[ =])[\"']?(?!\d+:\d+\b)[\w.@%+-]{1,64}:[^\s\"']{3,}",
    ),
    (
        _TOKENS,
        rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, _TOKENS.split()))})"
        r"(?=[\w.~/+=|-]{0,200}[A-Z0-9])[\w.~/+=|-]{8,}",
    ),
    *((hints, rf"\b{form}") for hints, form in _TOKENS_OF_A_FORM.items()),
)
"""Words, one of which is in small letters in whatever the pattern finds; and the pattern, within a line."""


@cache
def _compiled() -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
    """Not at import: most commands mask nothing."""
    return tuple(
        (tuple(words.lower().split()), re.compile(pattern, re.ASCII)) for words, pattern in _RULES
    )


_FOLLOWING = {
    "--?k(ey)?": r"(?=.*\d)(?=.*[A-Za-z])[\w+/=~-]{12,}",
    "-u|--user": r"(?!\d+:\d+\Z)[\w.@%+-]{1,64}:.{3,}",
}
"""Options that may be of a credential, or of the k of the k best, or of the name of a metric; what follows if it is."""
_SECRET_NAME = re.compile(rf"{_ANY}|{_KEYED}|{_LAST}")
_IN_A_VARIABLE = re.compile(r"(?:^|_)(PASS|PW|PIN|PAT|CREDS?|SID|OTP|JWT|KEY)(?:_|\d|$)", re.I)

_PEM_BEGINS, _PEM_ENDS = re.compile(_PEM), re.compile("-----END [A-Z0-9 ]*KEY")
_PEM_BODY = re.compile(r"[ \t\"'|]*[A-Za-z0-9+/]{1,76}={0,2}[\"',\\n]*\s*")
_PEM_AT_END = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+][A-Za-z0-9+/]{39,75}={0,2}(?=[\"',\\n]*\s*\Z)")
"""A line of a private key, and one behind a logger's prefix."""
MOST_KEY_LINES = 1000
"""Lines after the first of a private key whose end does not come, in which more of it is looked for."""


class Masker:
    """A stream of output: all but credentials, byte for byte; private keys are known across reads."""

    def __init__(self) -> None:
        self._key_lines_left = 0  # of a private key that has begun
        self._in_body = False  # the line before was of a key: its last line may be short

    def kept(self, lines: bytes) -> bytes:
        """The next lines, masked. A piece of a line is taken for a line."""
        text = lines.decode("latin-1")  # every byte is a character, so that all bytes come back
        if not self._key_lines_left and not _PEM_BEGINS.search(text):
            return kept_text(text).encode("latin-1")
        return "".join(map(self._line, text.splitlines(keepends=True))).encode("latin-1")

    def _line(self, line: str) -> str:
        if self._key_lines_left:
            self._key_lines_left = 0 if _PEM_ENDS.search(line) else self._key_lines_left - 1
            self._in_body = (self._in_body or len(line.strip()) >= 40) and _PEM_BODY.fullmatch(
                line
            ) is not None
            if self._in_body:
                return MASK + line[len(line.rstrip("\r\n")) :]
            line = _PEM_AT_END.sub(MASK, line)
        if _PEM_BEGINS.search(line) and not _PEM_ENDS.search(line):
            self._key_lines_left, self._in_body = MOST_KEY_LINES, True
        return kept_text(line)


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be kept, sorted, masked where they look like credentials."""
    names = sorted(name for name in environ if re.match(ALLOWED, name))
    return {
        name: MASK
        if _IN_A_VARIABLE.search(name) and _is_value(environ[name])
        else _masked(name, environ[name])
        for name in names
    }


def kept_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with what looks like a credential masked: ``--api-key=***``, ``--token ***``."""
    kept: list[str] = []
    for before, word in zip(("", *argv), argv, strict=False):
        name, _, value = word.partition("=")
        follows = before.startswith("-") and "=" not in before and not word.startswith("-")
        if (follows and _is_secret(before, word)) or any(
            re.fullmatch(option, before) and re.fullmatch(_FOLLOWING[option], word)
            for option in _FOLLOWING
        ):
            kept.append(MASK)
        else:
            masked = _masked(name, value)
            is_named = masked != value and re.fullmatch(r"[\w.-]+", name) is not None
            kept.append(f"{name}={masked}" if is_named else kept_text(word))
    return tuple(kept)


def kept_flags(text: str) -> str:
    """XLA_FLAGS with what looks like a credential masked."""
    return " ".join(kept_argv(text.split()))


def kept_text(text: str) -> str:
    """Text with what looks like a credential masked, line by line."""
    small = text.lower()
    rules = [rule for rule in _compiled() if any(word in small for word in rule[0])]
    if not rules:
        return text
    return "".join(_kept_line(line, rules) for line in text.splitlines(keepends=True))


def _kept_line(line: str, rules: Sequence[tuple[tuple[str, ...], re.Pattern[str]]]) -> str:
    small = line.lower()
    for words, pattern in rules:
        if any(word in small for word in words):
            line = pattern.sub(MASK, line)
    return line


def kept_output(lines: bytes) -> bytes:
    """As `Masker.kept`, of output that is there as a whole."""
    return Masker().kept(lines)


def mask_json(path: Path) -> None:
    """Write a JSON file anew without what looks like a credential in its texts; one that is damaged stays."""
    try:
        found = json.loads(path.read_bytes())
        kept = _kept_values(found)
    except (OSError, ValueError, RecursionError):
        return
    if kept != found:
        path.write_text(json.dumps(kept))


def _kept_values(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _kept_values(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_kept_values(item, name) for item in value]
    return _masked(name, value) if isinstance(value, str) else value


def mask_file(path: Path) -> None:
    """Write a file anew without what looks like a credential; a file without one stays untouched."""
    text = path.read_bytes()
    if (kept := kept_output(text)) != text:
        path.write_bytes(kept)


def _masked(name: str, value: str) -> str:
    if _is_secret(name, value):
        return MASK
    kept = kept_text(value)
    return (
        kept if kept == value or " " in value else MASK
    )  # of a command in quotes the rest may matter


def _is_secret(name: str, value: str) -> bool:
    """Whether a value is a credential by its name alone."""
    found = _SECRET_NAME.search(name)
    return found is not None and kept_text(f"{found[0]}={value}") != f"{found[0]}={value}"


def _is_value(value: str) -> bool:
    return not value.isdigit() and re.match(_NO_SWITCH, value) is not None
