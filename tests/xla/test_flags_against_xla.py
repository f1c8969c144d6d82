"""Our reading of XLA_FLAGS against that of XLA itself: jaxlib's compile options after each text."""

import json
import os
import subprocess
import sys

import pytest

from pgle.xla.flags.text import parse_flags

# Each text is read in a fork, since XLA reads the variable once in a process.
READER = """
import json, os, sys
import jaxlib.xla_client as client
answers = []
for text in json.load(sys.stdin):
    inward, outward = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ["XLA_FLAGS"] = text
        holder = client.CompileOptions()  # keeps what it hands out alive
        options = holder.executable_build_options.debug_options
        names = ("xla_dump_to", "xla_dump_hlo_module_re", "xla_disable_hlo_passes")
        os.write(outward, json.dumps({name: getattr(options, name) for name in names}).encode())
        os._exit(0)
    os.close(outward)
    with os.fdopen(inward, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    answers.append(json.loads(answer) if answer else None)
print(json.dumps(answers))
"""

TEXTS = [
    "--xla_dump_to=/a",
    "  \t--xla_dump_to=/a\n--xla_dump_hlo_module_re=b\r\n",
    '--xla_dump_to=\'a b\' --xla_dump_hlo_module_re="c\\"d\\\\e"',
    "--xla_dump_to='a\\b'",
    "--xla_dump_to='a b'--xla_dump_hlo_module_re=q",
    "--xla_dump_to='a b'x --xla_dump_hlo_module_re=q",
    '--xla_dump_to=a"b c" --xla_dump_hlo_module_re=q',
    "--xla_dump_to= --xla_dump_hlo_module_re=q",
    "--xla_dump_to=a --xla_dump_to=b",
    "--xla_dump_to=q word --xla_dump_to=r",
    "--xla_dump_to=q word --xla_no_such_flag",
    '--xla_dump_to="open b --xla_dump_hlo_module_re=q',
    "--xla_dump_to='",
    "--xla_dump_to=q;--xla_dump_to=r",
    "--xla_disable_hlo_passes=a,b --xla_disable_hlo_passes=c",
    "--xla_dump_to=a=b",
]
REJECTED = [
    "--xla_dump_to",
    "-xla_dump_to=q",
    "--xla_dump_to=q -- --xla_dump_hlo_module_re=r",
    "--xla-dump-to=q",
    "---xla_dump_to=q",
    "--xla_dump_to:q",
    "--XLA_DUMP_TO=q",
]


@pytest.fixture(scope="module")
def answers():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    child = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(TEXTS + REJECTED),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(TEXTS + REJECTED, json.loads(child.stdout), strict=True))


@pytest.mark.parametrize("text", TEXTS)
def test_values_are_those_xla_reads(answers, text):
    ours = parse_flags(text)
    assert {name: ours.value(name) or "" for name in answers[text]} == answers[text]


@pytest.mark.parametrize("text", REJECTED)
def test_xla_rejects_what_we_take_for_other_flags(answers, text):
    assert answers[text] is None
