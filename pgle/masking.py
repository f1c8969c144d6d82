"""Mask credentials in command lines, flags, environments and output that pgle keeps. Only this file
decides what is a credential.

Issuers document how their tokens begin. The rules of gitleaks and trufflehog collect these
(github.com/gitleaks/gitleaks, config/gitleaks.toml, MIT License). docs/run-directory.md names forms
that no rule finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pgle.files import read_kept

MASK = "***"

ALLOWED = (
    r"(XLA|JAX|NCCL|CUDA|NVIDIA|TF_CPP|TF_GPU|NVTE|PGLE|OMPI_COMM_WORLD|PMI|PMIX)_\w+\Z"
    "|SLURM_(JOB_ID|STEP_ID|PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST"
    r"|JOB_NODELIST|STEP_NODELIST|GPUS_ON_NODE)\Z"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|JOB_COMPLETION_INDEX|LD_PRELOAD)\Z"
)
"""Names of variables that pgle may keep."""

# Parts of names of credentials. After the first kind, any value is a credential. After the second,
# a number is not one: it may be a count of tokens. The third kind must end the name.
_ANY = (
    "(?i:secret(?!ion)|passw|pass(?:phrase|code|key)|credential|pwd|cookie"
    "|licen[cs]e|webhook|mnemonic"
    r"|(?<![a-z])(?:psk|bearer|pw)(?![a-z]))[\w-]{0,64}(?: (?i:key|token|code|phrase|value))?"
)
_KEYED = (
    r"(?i:token(?!s|i[sz])|auth(?!or(?!iz))"
    "|(?:api|access|account|private|encryption|signing|master|shared|ssh|recovery"
    "|deploy)[ _-]?key(?!s)"
    "|(?<![a-z0-9])(?!(?:p?rng|random|cache|sort|dict|group|public|primary|top"
    r"|k)[_-])(?:[a-z0-9]+[_-]){1,6}key\b)[\w-]{0,64}"
)
_LAST = (
    "(?:(?<![A-Za-z0-9])(?i:pass|pw|pin|pat|creds?|sid|otp|jwt|sig|sas)"
    r"|(?<=[a-z])(?:Pass|Pw|Pin))\d?(?![\w-])"
)
_SESSION = r"(?<![A-Za-z0-9])(?i:session(?:[_-]?id)?|sig|sas|otp|pin|pat(?!h)|jwt|access[_-]code)"
"""Names of both credentials and harmless things. The value decides."""
_OPAQUE = (
    r"(?=[\w+/=~!$%^&*-]{0,200}\d)(?=[\w+/=~!$%^&*-]{0,200}[A-Za-z])"
    r"[\w+/=~!$%^&*-]{8,2000}(?![\w.+/=~-])"
)
"""A value that is hardly a name: digits and letters, without a full stop."""

# Text between a name and its value. Quotes may be those of JSON inside JSON. Colours may come
# between.
_QUOTES = r"(?:\x1b\[[\d;]*m|[\\\"'`])*"
_SIGN = r"(?:: ?\w+ ?=|=>|:=|->|[=:](?!=)|>|[\"']?,? *[\"']?(?i:value)[\"']? ?[:=]|(?i:%3[AD]))"
_IS = rf"(?:{_QUOTES}(?:%22)?\]?[ \t]*{_SIGN}[ \t]*[\[({{]?{_QUOTES}|[\\]*[\"'],[ \t]*b?[\\]*[\"'])"
_END = r"(?![^\s\"',;)\]}\\<>])"
_NO_SWITCH = (
    rf"(?!(?i:none|null|nil|true|false|yes|no|unset|enabled|disabled|\**){_END})"
)
_NO_NUMBER = rf"(?![-+]?[\d.,]*\d(?:[eE][-+]?\d+)?%?(?:/\w+)?{_END})"
_SCHEME = (
    "(?:(?i:bearer|basic|digest|token|apikey|negotiate|ntlm|splunk|sharedkey"
    r"|bot) +|(?:SecretStr\(|b)?[\\]*[\"'])?"
)
_WORD = r"[^\s\"'<>\x1b]+"
_VALUE = rf"{_SCHEME}(?:(?<=[\"'])(?:(?![\\]*[\"']).)+|{_WORD})"
_OPTION = r"(?<![^\s\"'])--?[\w-]{0,64}?"

_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

_TOKENS = (
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glcbt- gldt- glffct- glft- glimt- "
    "glagent- gloas- glptt- "
    "glrt- glsoat- hf_ api_org_ sk- sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ "
    "rk_prod_ xoxa- xoxb- "
    "xoxe. xoxe- xoxo- xoxp- xoxr- xoxs- xapp- ya29. AIza npm_ pypi- nvapi- "
    "dckr_pat_ dckr_oat_ hvb. hvs. "
    "SG. AKCp LTAI ABSK A3- ops_ p8e- AGE-SECRET-KEY-1 doo_v1_ dop_v1_ dor_v1_ "
    "dp.pt. dt0c01. duffel_ "
    "EZAK EZTK FLWSECK_ fo1_ fm1a_ fm1r_ fm2_ fio-u- glc_ glsa_ GR1348941 HRKU-AA "
    "lin_api_ ntn_ pplx- "
    "pscale_ PMAK- pnu_ rdme_ rubygems_ shippo_ shpat_ shpca_ shppa_ shpss_ sgp_ "
    "sntrys_ sntryu_ sq0atp- "
    "xkeysib- gsk_ s-s4t2 sm_aat_ sm_pat_ sm_sat_ "
    "xai- r8_ tskey- wandb_v1_ tgp_v1_ csk- jina_ pcsk_ lsv2_pt_ lsv2_sk_ phx_ "
    "e2b_ tvly- GOCSPX- bkua_ CCIPAT_ "
    "sbp_ sb_secret_ nfp_ whsec_ sq0csp- EAAAE EAAAl figd_ figu_ ATATT3x ATCTT3x "
    "ATBB NRAK- NRII- CFPAT- "
    "squ_ sqp_ sqa_ mdb_sa_sk_ rzp_live_ rzp_test_ waka_ cfut_ cfat_ vcp_ vca_ "
    "hf_oauth_ gAAAAA 1//0 "
    "glwt- glrtr- cal_live_"
)
"""Beginnings of tokens. The rest must have a digit or a capital letter, else it may be a name."""
_LONG_TOKENS = "fw_ rnd_ re_ secret_ tk_ ak- as- sess- pat_ tfp_"
"""Beginnings of tokens and of other names. A token has 16 letters and digits in a row."""
_TOKENS_OF_A_FORM = {
    "akia asia abia acca": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{8,}",
    "eyj eyk": r"ey[JK][\w-]{10,2000}(?:\.[\w-]+){1,4}",
    "dapi": r"dapi[a-f0-9]{32}",
    "key-": r"key-[0-9a-f]{32}\b",
    "rpa_": r"rpa_[A-Z0-9]{16,}",
    "pul-": r"pul-[a-f0-9]{40}",
    "sha256~": r"sha256~[\w-]{43}",
    "q~": r"\w{3}\dQ~[\w.~-]{31,}",
    "atlasv1": r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{16,}",
    "sk": r"SK[0-9a-f]{32}\b",
    "cio": r"cio[A-Za-z0-9]{32}\b",
    "oy2": r"oy2[a-z0-9]{43}\b",
    "pat": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b",
    "pat-": r"pat-[a-z]{2}\d-[0-9a-f-]{36}\b",
}

_NOUN = (
    r"passw(?:or)?d|passphrase|passcode|secret|(?:\w+ )?token|(?:api|access"
    "|secret|private|encryption) key"
)
_NO_VALUE = (
    "not|too|in|be|the|an?|set|used|of|at|as|for|valid|invalid|missing|required|ok"
    "|empty|none|on|off|to|from|per|and"
    "|passed|given|needed|stored|kept|read|available|correct|wrong|expired|unknown"
    "|no|true|false|optional|ignored"
)
_STRING = r"[\"'][^\"'\n]{0,80}[\"']"

_OPTIONS_OF_PROGRAMS: Mapping[str, str] = {
    "-p": r"mysql\w*|mariadb[\w-]*|mongo\w*|sshpass|cqlsh|influx|7za?|rar|unrar",
    "-a": r"redis-cli|redis-benchmark|valkey-cli",
    "-w": r"ldap\w+",
    "-P": r"zip|unzip|sqlcmd|bcp|isql|tsql|ipmitool|mosquitto_\w+",
    "-k": r"openssl",
    "-K": r"openssl",
    "-N": r"ssh-keygen",
}
"""Options that take a password, and the programs that have them (by their manual pages)."""
_ACCOUNT = r"(?<!\S)(?:-u|-U|--user(?:-?name)?)[ =]?(?!-)[\w@.+%-]+(?<!\.py)(?!\S)"
_NO_PORT = r"(?!\d+:\d+(?:/\w+)?(?:\s|\Z))"
_REST = r"[^|;&\n]{0,400}?"  # the rest of a command
_COMMANDS: Sequence[tuple[str, str]] = (
    *(
        (
            option.lower(),
            rf"(?P<before>(?<![\w.-])(?:{programs})(?= ){_REST} {option} ?)(?![ -]){_WORD}",
        )
        for option, programs in _OPTIONS_OF_PROGRAMS.items()
    ),
    (
        "-u --user",
        rf"(?P<before>{_ACCOUNT}{_REST} -p ?)(?![ -]){_NO_PORT}{_WORD}",
    ),
    ("-u ", rf"(?P<before>(?<!\S)-U ?[\w.\\-]+%){_WORD}"),
    ("-user", rf"(?P<before>--proxy-user[ =][\"']?[\w.-]+:){_WORD}"),
    ("curl", rf"(?P<before>\bcurl {_REST}-b [\"']?[\w.-]+=){_WORD}"),
    (
        "vault wandb",
        rf"(?P<before>\b(?:vault|wandb) login (?:--?[\w-]+(?:=\S+)? )*)(?!-){_WORD}",
    ),
    (
        "config",
        (
            r"(?P<before>\bconfig(?:ure)? (?:set )?\S*(?i:token|secret|passw|auth"
            rf"|key)\S* )(?!-){_WORD}"
        ),
    ),
    ("--from-literal", rf"(?P<before>--from-literal[ =][\"']?[\w.-]+=){_WORD}"),
    ("htpasswd", rf"(?P<before>\bhtpasswd (?:-\w+ )+\S+ \S+ ){_WORD}"),
    (
        "echo printf",
        (
            r"(?P<before>\b(?:echo|printf) (?:-n )?)\S+(?= *\|[^|]{0,200}(?:-stdin"
            r"|sudo -\w*S|passwd|login|-token))"
        ),
    ),
    ("<<<", rf"(?P<before>(?i:login|stdin|token|passw|sudo){_REST}<<< ?[\"']?){_WORD}"),
    (
        "sqlplus jdbc:oracle",
        r"(?P<before>\b(?:sqlplus (?:-\w+ )*|jdbc:oracle:\w+:)[^/\s@]{0,64}/)[^\s@]+(?=@)",
    ),
    (
        "@",
        (
            r"(?<![\w/:.])[A-Za-z][\w.-]{0,63}:(?!//)(?!\d+@)[^\s:@/\"']{4,}@(?!sha\d)"
            r"(?=[\w.-]+(?::\d|/))"
        ),
    ),
    (
        ":",
        rf"(?P<before>(?<!\S)[\w.*-]+:(?:\d{{4,5}}|\*):[\w*-]+:[\w.-]+:){_OPAQUE}(?!\S)",
    ),
)
"""Rules, as in `_RULES`, for credentials among the words of a command, in an account before its
host, and in a password file of PostgreSQL.
"""

_RULES: Sequence[tuple[str, str]] = (
    (
        "private",
        (
            rf"{_PEM}(?:.{{0,9000}}?-----END [A-Z0-9 ]+-----|(?:[\w+/=]|[\\]+[nr]"
            rf"|[ ](?=[A-Za-z0-9+/=]{{32}}))*)"
        ),
    ),
    ("://", r"://(?:[^/\s:@\"']*:[^/\s\"']+|[^/\s\"'@]{16,})@(?=[\w.\[-])"),
    (
        "?sig &sig ;sig &x- ?x- ?key= &key= code= session= sid=",
        r"[?&;#](?i:sig|signature|key|code|session|sid|x-\w+-\w+)=[^\s&\"']{8,}",
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
        "auth credential login",
        (
            r"(?i:auth\w*|credentials?|login)[\"']?\s*[=:(][\w."
            rf"(\[ ]{{0,60}}{_STRING}, *(?:\w+ ?= ?)?b?[\"'][^\"'\n]+"
        ),
    ),
    (
        "session sig sas otp pin pat jwt access",
        rf"{_SESSION}{_IS}{_OPAQUE}|{_OPTION}{_SESSION}[ \t]+{_OPAQUE}",
    ),
    (
        (
            "secret passw passphrase passcode credential pwd cookie licen webhook "
            "token auth key psk pw bearer mnemonic"
        ),
        rf"(?:{_ANY}{_IS}|{_KEYED}{_IS}{_NO_NUMBER}){_NO_SWITCH}{_VALUE}"
        rf"|{_OPTION}(?:{_ANY}[ \t]+|{_KEYED}[ \t]+{_NO_NUMBER})(?!-){_NO_SWITCH}{_VALUE}"
        r"|(?i:setenv \w*(?:secret|token|passw|key)\w* +)\S+",
    ),
    (
        "pass pw pin pat cred sid otp jwt",
        rf"{_LAST}(?:(?=[\"'=\\\x1b%>]|: ?\w+ ?=){_IS}|(?:(?<=[_-]\w{{3}})"
        rf"|(?<=[_-]\w{{4}})): ?){_NO_SWITCH}{_VALUE}"
        rf"|{_OPTION}(?<=[_-]){_LAST}[ \t]+(?!-){_NO_SWITCH}(?:pass:)?{_WORD}|\bsshpass -p ?\S+",
    ),
    (
        "OTP PIN PSK JWT",
        r"\b(?:OTP|PIN|PSK|JWT)[ \t]*[:=][ \t]*(?=\S*\d)\S{4,}",
    ),
    (
        "passw passphrase passcode token secret key",
        rf"\b(?i:{_NOUN}) (?:(?i:is|was|set to|(?:has|have) been (?:re)?set to"
        r"|changed to):? |(?=[\"'`]))[\"'`]?"
        rf"(?!(?i:{_NO_VALUE})\b)[^\s\"'`]{{4,}}"
        rf"|\b(?i:key (?:is|was):? )[\"'`]?{_OPAQUE}"
        r"|\b(?i:using|with|use|generated|new|enter|created|got) (?i:(?:the|an?"
        rf"|new|your) )?(?i:{_NOUN}):? [\"'`]?{_OPAQUE}",
    ),
    (
        "token secret credential passw fernet key login auth",
        (
            "(?i:token(?!i)|secret|credential|passw(?:or)?d|fernet|api_?key"
            rf"|login)\w*\((?:{_STRING}, *)?b?[\"']{_OPAQUE}"
        ),
    ),
    (
        "username kaggle",
        (
            rf"[\"']username[\"']: ?{_STRING}, ?[\"']key[\"']: ?[\"'][^\"']+"
            rf"|\bkaggle config set .{{0,200}}-v \S+"
        ),
    ),
    *_COMMANDS,
    (
        "login",
        (
            r"\blogin (?:\S+ password \S+|[0-9a-f]{40}\b)"
            r"|\blogin\((?:[^)\n]{0,80}?key *= *)?[\"'][\w./+=-]{12,}[\"']"
        ),
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
    (
        _LONG_TOKENS,
        rf"(?<![A-Za-z0-9])(?:{_LONG_TOKENS.replace(' ', '|')})(?:[A-Za-z0-9]{{1,12}}[_-])?"
        r"(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{16,}",
    ),
    *((hints, rf"\b{form}") for hints, form in _TOKENS_OF_A_FORM.items()),
)
"""(hints, pattern) of each rule. The pattern works within a line. Every match contains at least one
of the hints, in lower case, so that lines without a hint need no search.
"""


@cache
def _compiled() -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
    """(hints, compiled pattern) of each rule. It is not done at import, since most commands mask
    nothing.
    """
    return tuple(
        (tuple(words.lower().split()), re.compile(pattern, re.ASCII))
        for words, pattern in _RULES
    )


_FOLLOWING = {
    "-p": r"(?=.*\d)(?=.*[A-Za-z])[^\s:/,.-]{6,}",
    "--?k(ey)?": r"(?=.*\d)(?=.*[A-Za-z])[\w+/=~-]{12,}",
    "-u|--user": r"(?!\d+:\d+\Z)[\w.@%+-]{1,64}:.{3,}",
}
"""Options that may take a credential, but also a port, a number k or the name of a metric. By
option, the form of a credential.
"""
_SECRET_NAME = re.compile(rf"{_ANY}|{_KEYED}|{_LAST}|{_SESSION}(?![a-z])")
_IN_A_VARIABLE = re.compile(
    "(?:^|_)(PASS|PW|PIN|PAT|CREDS?|SID|OTP|JWT|KEY|SESSION|BEARER|PSK|SIG"
    r"|SIGNATURE|SAS|PASSCODE|DSN)(?:_|\d|$)",
    re.I,
)

_PEM_BEGINS = re.compile(_PEM)
_PEM_ENDS = re.compile("-----END [A-Z0-9 ]*KEY")
_PEM_BODY = re.compile(r"[ \t\"'|]*[A-Za-z0-9+/]{1,76}={0,2}[\"',\\n]*\s*")
_PEM_AT_END = re.compile(
    r"(?<![\w+/=.-])[A-Za-z0-9+][A-Za-z0-9+/]{39,75}={0,2}(?=[\"',\\n]*\s*\Z)"
)
"""`_PEM_BODY` matches a line of a private key, `_PEM_AT_END` one after a logger's prefix."""
MOST_KEY_LINES = 1000
"""If the end of a private key is missing, so many lines after its first are searched for it."""


class Masker:
    """Masks credentials in a stream of output, and keeps everything else byte for byte. It follows
    private keys from one read to the next.
    """

    def __init__(self) -> None:
        self._key_lines_left = 0  # lines in which a begun private key may continue
        # whether the line before was part of a key, whose last line may be short
        self._in_body = False

    def kept(self, lines: bytes) -> bytes:
        """The next lines, masked. A piece of a line counts as a line."""
        # each byte is one character, so encoding gives all bytes back
        text = lines.decode("latin-1")
        if self._key_lines_left or _PEM_BEGINS.search(text):
            kept = "".join(map(self._line, text.splitlines(keepends=True)))
        else:
            kept = kept_text(text)
        return kept.encode("latin-1")

    def _line(self, line: str) -> str:
        if self._key_lines_left:
            self._key_lines_left -= 1
            if _PEM_ENDS.search(line):
                self._key_lines_left = 0
            is_long = len(line.strip()) >= 40
            is_body = _PEM_BODY.fullmatch(line) is not None
            self._in_body = is_body and (self._in_body or is_long)
            if self._in_body:
                return MASK + line[len(line.rstrip("\r\n")) :]
            line = _PEM_AT_END.sub(MASK, line)
        if _PEM_BEGINS.search(line) and not _PEM_ENDS.search(line):
            self._key_lines_left = MOST_KEY_LINES
            self._in_body = True
        return kept_text(line)


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that pgle may keep, sorted by name. Values that look like credentials are
    masked.
    """
    names = sorted(name for name in environ if re.match(ALLOWED, name))
    return {name: _kept_value(name, environ[name]) for name in names}


def _kept_value(name: str, value: str) -> str:
    """The value of a variable, masked if it looks like a credential."""
    if _IN_A_VARIABLE.search(name) and _is_value(value):
        return MASK
    return _masked(name, value)


def is_credential(name: str, value: str) -> bool:
    """Whether a variable, or a part of its value, looks like a credential."""
    return _kept_value(name, value) != value


def kept_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Mask credentials in a command line: ``--api-key=***``, ``--token ***``."""
    own = _password_options(argv)
    options = {*own, "-p"} if _has_account(argv) else own
    kept: list[str] = []
    for before, word in zip(("", *argv), argv, strict=False):
        attached = next((option for option in own if word.startswith(option)), word)
        if _follows_its_name(before, word) or _is_password(before, word, options):
            kept.append(MASK)
        elif word != attached and not word.startswith("--"):
            kept.append(f"{attached}{MASK}")
        else:
            kept.append(_kept_word(word))
    return tuple(kept)


def _kept_word(word: str) -> str:
    """Mask a single word of a command line."""
    name, _, value = word.partition("=")
    masked = _masked(name, value)
    is_named = masked != value and re.fullmatch(r"[\w.-]+", name) is not None
    return f"{name}={masked}" if is_named else kept_text(word)


def _follows_its_name(before: str, word: str) -> bool:
    """Whether the option before a word makes it a credential."""
    is_named = before.startswith("-") and "=" not in before and not _is_option(word)
    if is_named and _is_secret(before, word):
        return True
    known = _FOLLOWING.items()
    forms = (form for option, form in known if re.fullmatch(option, before))
    return any(re.fullmatch(form, word) for form in forms)


def _is_password(before: str, word: str, options: Collection[str]) -> bool:
    """Whether a word follows one of `options`, which take a password, and is not a port."""
    is_value = before in options and not _is_option(word)
    return is_value and re.match(_NO_PORT, word) is not None


def _password_options(argv: Sequence[str]) -> set[str]:
    """The short options that take a password in the programs of a command line."""
    names = [word.rpartition("/")[2] for word in argv]
    return {
        option
        for option, programs in _OPTIONS_OF_PROGRAMS.items()
        if any(re.fullmatch(programs, name) for name in names)
    }


def _has_account(argv: Sequence[str]) -> bool:
    """Whether a command names an account (``-u me``). ``python -u train.py`` (unbuffered output)
    does not.
    """
    return re.search(_ACCOUNT, " ".join(argv)) is not None


def _is_option(word: str) -> bool:
    """Whether a word is an option: it begins with a dash and does not look like a password."""
    return word.startswith("-") and re.fullmatch(rf"--?{_OPAQUE}", word) is None


def kept_text(text: str) -> str:
    """Mask credentials in a text, line by line."""
    small = text.lower()
    rules = [rule for rule in _compiled() if any(word in small for word in rule[0])]
    if not rules:
        return text
    return "".join(_kept_line(line, rules) for line in text.splitlines(keepends=True))


def _kept_line(
    line: str, rules: Sequence[tuple[tuple[str, ...], re.Pattern[str]]]
) -> str:
    small = line.lower()
    for words, pattern in rules:
        if any(word in small for word in words):
            line = pattern.sub(_mask, line)
    return line


def _mask(found: re.Match[str]) -> str:
    """The replacement of a match: the mask, after the group `before` if the pattern has it."""
    return f"{found.groupdict().get('before') or ''}{MASK}"


def kept_output(lines: bytes) -> bytes:
    """Mask credentials in complete output, as `Masker.kept` does in a stream."""
    return Masker().kept(lines)


MOST_MASKED_BYTES = 1 << 30  # a log of XLA has a few megabytes


def mask_json(path: Path) -> None:
    """Mask credentials in the texts of a JSON file, and rewrite it. A damaged file stays."""
    try:
        found = json.loads(read_kept(path) or b"")
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
    """Mask credentials in a file, and rewrite it. A file without credentials stays untouched. So
    does anything that is not a regular file of at most `MOST_MASKED_BYTES`.
    """
    text = read_kept(path, max_bytes=MOST_MASKED_BYTES)
    if text is not None and (kept := kept_output(text)) != text:
        path.write_bytes(kept)


def _masked(name: str, value: str) -> str:
    if _is_secret(name, value):
        return MASK
    kept = kept_text(value)
    # if the value is a command in quotes, its other words may matter
    return kept if kept == value or " " in value else MASK


def _is_secret(name: str, value: str) -> bool:
    """Whether its name makes a value a credential."""
    found = _SECRET_NAME.search(name)
    if found is None:
        return False
    setting = f"{found[0]}={value}"
    return kept_text(setting) != setting


def _is_value(value: str) -> bool:
    return not value.isdigit() and re.match(_NO_SWITCH, value) is not None
