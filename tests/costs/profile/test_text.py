"""The text form against protobuf's own parser and printer."""

import math

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from pgle.costs.profile.files import TextSyntaxError, decode_entries, encode_entries
from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENTRIES = st.lists(st.tuples(NAMES, st.floats()), max_size=8)


def message_of(entries):
    message = ProfiledInstructionsProto()
    for name, cost_us in entries:
        message.costs.add(name=name, cost_us=cost_us)
    return message


def same(one, other):
    return [(n, repr(c)) for n, c in one] == [(n, repr(c)) for n, c in other]


@settings(deadline=None)  # machines differ
@given(ENTRIES)
def test_what_we_write_protobuf_reads(entries):
    message = ProfiledInstructionsProto()
    text_format.Parse(encode_entries(entries), message)
    assert same([(cost.name, cost.cost_us) for cost in message.costs], entries)


@settings(deadline=None)  # machines differ
@given(ENTRIES, st.booleans(), st.booleans())
def test_what_protobuf_writes_we_read(entries, one_line, as_utf8):
    text = text_format.MessageToString(
        message_of(entries), as_one_line=one_line, as_utf8=as_utf8
    )
    assert same(
        decode_entries(text), [(c.name, c.cost_us) for c in message_of(entries).costs]
    )


@settings(deadline=None)  # machines differ
@given(ENTRIES)
def test_text_round_trip(entries):
    assert same(decode_entries(encode_entries(entries)), entries)


@settings(deadline=None)  # machines differ
@given(
    st.lists(
        st.sampled_from(
            [
                *"costs{}name:\"'\\ \n#cost_us10.-e+fx,;[]<>\u00a0\0é",
                "costs",
                "name",
                "cost_us",
            ]
        )
    )
)
def test_nothing_passes_that_protobuf_refuses(pieces):
    text = "".join(pieces)
    try:
        ours = decode_entries(text)
    except TextSyntaxError:
        return
    message = ProfiledInstructionsProto()
    text_format.Parse(text, message)
    assert same(ours, [(cost.name, cost.cost_us) for cost in message.costs])


@pytest.mark.parametrize(
    "text, entries",
    [
        ('# a comment\ncosts { name: "a" cost_us: 1 } # more\r\n', [("a", 1.0)]),
        ("costs{name:'a'cost_us:1e3}", [("a", 1000.0)]),
        ('costs: [{ name: "a" }, < cost_us: 2.5f; >]', [("a", 0.0), ("", 2.5)]),
        ('costs { cost_us: inf name: "a" "b" }', [("ab", math.inf)]),
        (r'costs { name: "\141\x62\u0063" cost_us: -.5 }', [("abc", -0.5)]),
    ],
)
def test_spellings_that_text_format_knows(text, entries):
    assert decode_entries(text) == entries


def test_latencies_are_left_out():
    text = 'costs { name: "a" cost_us: 1 } latencies { source: "a" target: "b" latency_us: 3 }'
    assert decode_entries(text) == [("a", 1.0)]


@pytest.mark.parametrize(
    "text, where",
    [
        ('costs { name: "a" cost_us: 1 } colour: 3', "1:32"),
        ('costs { name: "a" cost_ns: 1 }', "1:19"),
        ('costs { name: "a" cost_us: 1', "1:"),
        ('costs { name: "a\n" cost_us: 1 }', "1:15"),
        ('\n costs { name: "a" cost_us: 1_000 }', "2:29"),
        ('costs { name: "a" cost_us: +5 }', "1:28"),
        ('costs { name: "a" cost_us: 010 }', "1:28"),
        ('costs { name: "a" cost_us: 0x10 }', "1:28"),
        ('costs { name: "a" name: "b" }', "1:"),
        ('costs {\u00a0name: "a" }', "1:8"),
        ("\ufeffcosts { }", "1:1"),
        (r'costs { name: "\q" }', "1:15"),
        ("costs { cost_us: inff }", "1:18"),
        ("costs { costs { costs { } } }", "1:9"),
        ("[type.googleapis.com/x.Y] { }", "1:"),
    ],
)
def test_what_xla_refuses_is_refused_with_its_place(text, where):
    with pytest.raises(TextSyntaxError, match=f"^{where}"):
        decode_entries(text)
