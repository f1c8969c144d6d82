"""XLA_FLAGS text as values and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.xla.flags.text import (
    Flag,
    as_bool,
    effective,
    format_flags,
    kept_flags,
    merge_flags,
    parse_flags,
    same_value,
)

NAMES = st.text(alphabet="az09_", min_size=1, max_size=12).map("xla_{}".format)
VALUES = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=12
)
FLAGS = st.lists(st.builds(Flag, NAMES, VALUES), max_size=6)


def codes(text):
    return [finding.code for finding in parse_flags(text).findings]


@given(FLAGS)
def test_formatted_flags_are_read_back(flags):
    assert list(parse_flags(format_flags(flags)).flags) == flags


@given(st.text(max_size=40))
def test_any_text_is_read(text):
    assert parse_flags(text).text == text


@given(FLAGS, FLAGS)
def test_the_users_values_survive_a_merge(user, ours):
    theirs = parse_flags(format_flags(user))
    merged = parse_flags(merge_flags(theirs, ours).xla_flags).effective()
    for name, value in theirs.effective().items():
        assert merged[name] == value


@given(FLAGS, FLAGS)
def test_every_flag_of_ours_is_added_or_said_to_have_given_way(user, ours):
    result = merge_flags(parse_flags(format_flags(user)), ours)
    merged = parse_flags(result.xla_flags).effective()
    for name, value in effective(ours).items():
        assert same_value(merged[name], value) or name in {
            finding.flag for finding in result.warnings
        }


@given(FLAGS)
def test_merging_twice_adds_nothing_more(ours):
    once = merge_flags(parse_flags("--xla_user=1"), ours)
    assert merge_flags(parse_flags(once.xla_flags), ours).flags == ()


def test_the_last_of_repeated_flags_counts():
    assert parse_flags("--xla_dump_to=a --xla_dump_to=b").effective() == {
        "xla_dump_to": "b"
    }


def test_disabled_passes_accumulate():
    text = "--xla_disable_hlo_passes=a,b --xla_disable_hlo_passes=c"
    assert parse_flags(text).effective() == {"xla_disable_hlo_passes": "a,b,c"}


def test_signed_items_of_command_buffers_change_the_value_before():
    text = (
        "--xla_gpu_enable_command_buffer=FUSION --xla_gpu_enable_command_buffer=+CUBLAS"
    )
    assert parse_flags(text).value("xla_gpu_enable_command_buffer") == "FUSION,+CUBLAS"


def test_flags_are_separated_by_blanks_tabs_and_lines():
    assert [
        flag.name for flag in parse_flags(" --xla_a\t--xla_b=1\n --xla_c\r\n").flags
    ] == [
        "xla_a",
        "xla_b",
        "xla_c",
    ]


def test_single_quotes_keep_blanks_and_backslashes():
    assert parse_flags(r"--xla_dump_to='a \b' --xla_x").value("xla_dump_to") == r"a \b"


def test_double_quotes_take_the_character_after_a_backslash():
    assert parse_flags(r'--xla_dump_to="a\"b\\c"').value(
        "xla_dump_to"
    ) == r"a\b".replace(r"\b", '"b\\c')


def test_an_open_quote_takes_the_rest():
    assert parse_flags("--xla_dump_to='a --xla_b=1").effective() == {
        "xla_dump_to": "a --xla_b=1"
    }


def test_a_quote_inside_a_value_is_an_ordinary_character():
    parsed = parse_flags("--xla_dump_to=a'b c' --xla_b=1")
    assert (parsed.effective(), parsed.ignored) == (
        {"xla_dump_to": "a'b"},
        "c' --xla_b=1",
    )


def test_the_empty_value_is_not_a_bare_flag():
    assert parse_flags("--xla_gpu_enable_command_buffer= --xla_b").effective() == {
        "xla_gpu_enable_command_buffer": "",
        "xla_b": None,
    }


def test_a_bare_word_ends_parsing_and_is_an_error():
    parsed = parse_flags("--xla_gpu_autotune_level=4 true --xla_dump_to=D")
    assert parsed.effective() == {"xla_gpu_autotune_level": "4"}
    assert parsed.ignored == "true --xla_dump_to=D"
    assert "1 more (--xla_dump_to=D) are ignored" in parsed.findings[0].message


def test_a_text_without_a_dash_is_a_file():
    assert (parse_flags("flags.txt").file, codes("flags.txt")) == (
        "flags.txt",
        ["file"],
    )


def test_single_dash_double_dash_and_dashes_in_names_are_malformed():
    assert (
        codes("-xla_a=1")
        == codes("-- --xla_b")
        == codes("--xla-dump-to=q")
        == ["malformed"]
    )


def test_the_remedy_for_dashes_in_a_name_is_underscores():
    assert (
        parse_flags("--xla-dump-to=q").findings[0].remedy == "write --xla_dump_to=VALUE"
    )


def test_ours_stand_before_the_users_text():
    merged = merge_flags(parse_flags("--xla_a=1 word"), [Flag("xla_b", "2")])
    assert merged.xla_flags == "--xla_b=2 --xla_a=1 word"


def test_what_gives_way_is_said():
    merged = merge_flags(parse_flags("--xla_a=1"), [Flag("xla_a", "2")])
    assert (merged.flags, [finding.code for finding in merged.warnings]) == (
        (),
        ["kept"],
    )
    assert (
        merged.warnings[0].line()
        == "--xla_a: yours stays (--xla_a=1); pgle would have set --xla_a=2"
    )


def test_equal_booleans_are_not_a_conflict():
    assert (
        merge_flags(
            parse_flags("--xla_a --xla_b=1"),
            [Flag("xla_a", "true"), Flag("xla_b", "TRUE")],
        ).warnings
        == ()
    )


def test_disabled_passes_of_both_sides_are_joined():
    merged = merge_flags(
        parse_flags("--xla_disable_hlo_passes=a"),
        [Flag("xla_disable_hlo_passes", "a,b")],
    )
    assert parse_flags(merged.xla_flags).value("xla_disable_hlo_passes") == "b,a"


def test_booleans_are_true_and_one_in_any_case():
    assert [as_bool(word) for word in ("True", "1", "FALSE", "0", "yes", "")] == [
        True,
        True,
        False,
        False,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "--xla_a=1 --xla_dump_to=https://me:abc@host",
            "--xla_a=1 --xla_dump_to=***",
        ),
        ("--xla_gpu_x=a,b  --xla_tokens=5", "--xla_gpu_x=a,b --xla_tokens=5"),
        ('--xla_dump_to="/my runs/x"', '--xla_dump_to="/my runs/x"'),
        ("--xla_a='b --token=abcdef c' --xla_b=1", '--xla_a="b --*** c" --xla_b=1'),
        ("--xla_a=1 left --xla_b=2", "--xla_a=1 left --xla_b=2"),
        ("my flags.txt", "my flags.txt"),
        ("", ""),
    ],
)
def test_kept_flags_are_those_that_xla_reads_without_credentials(text, kept):
    assert kept_flags(text) == kept


def test_blanks_alone_are_a_file_that_ends_the_program():
    (finding,) = parse_flags(" ").findings
    assert (finding.level, finding.code) == ("error", "file")
