"""The account of a step in words: the same verdict, rows and document in every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pgle.account.next_move import (
    BY_SCHEDULE,
    OF_PROGRAM,
    Known,
    Move,
    Search,
    next_move,
)
from pgle.account.value import (
    LARGE,
    Account,
    Basis,
    ContentionLoss,
    Opportunity,
    OpportunityKind,
    Place,
    StepBase,
    StepBounds,
    TimedSteps,
    chosen,
    excluded,
)
from pgle.errors import cut, printable
from pgle.next import Next, Sentence, to_type
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    MOST_ACTIONS,
    Advice,
    Cell,
    Column,
    Part,
    Prose,
    Saving,
    Section,
    Tone,
    Value,
    table,
)
from pgle.report.text import SCOPE_WIDTH, Document, flat
from pgle.worth import LEAST_GAIN, is_worth

PLACES = 5  # places of each opportunity in its section
SpanOf = Callable[[str], "tuple[float, float] | None"]
"""A function that returns an instruction's (start, end) in the timeline, in µs; None if it is not
drawn.
"""


def nowhere(name: str) -> None:
    """Return None, because there is no timeline."""


def headline(account: Account) -> tuple[str, Tone]:
    """Name the opportunity that saves most; if there is none, say what bounds the step.

    If the part that only the program's HLO can price may be larger, it comes first.
    """
    if account.needs_module:
        return f"Give the program's HLO: {_unread(account)}", "warn"
    lever = account.lever
    if lever is not None and lever.comes_first:
        return f"{lever.title}: {lever.why}", "warn"
    if lever is not None:
        saves = saving_of(account, lever)
        words = f"{lever.title}: saves {saves} of {account.base.short}, {lever.basis}"
        is_large = account.share(lever.known_saving_us) >= LARGE
        tone: Tone = "warn" if is_large else ""
        return f"{words}{_larger_bound(account, lever)}", tone
    unproven = account.unproven
    if unproven is not None:
        most = share_words(account, unproven.most_us)
        bound = f"at most {most} of {account.base.short}"
        return f"No sure gain; open: {lowered(unproven.title)} ({bound})", ""
    limit = figures.share(LEAST_GAIN)
    words = f"Nothing to gain above {limit} of the step: {bound_words(account)}"
    return words, "good"


def _larger_bound(account: Account, lever: Opportunity) -> str:
    """Name an edit of the program that may save more than the lever; empty if there is none."""
    item = account.unproven
    if item is None or item.kind not in OF_PROGRAM:
        return ""
    if item.most_us <= lever.most_us or account.share(item.most_us) < LARGE:
        return ""
    most = share_words(account, item.most_us)
    return f"; open: {lowered(item.title)} (at most {most})"


def share_words(account: Account, us: float) -> str:
    """Write a time as a share of the account's step."""
    return figures.share(account.share(us))


def bound_words(account: Account) -> str:
    """Name the part that takes most of the step, and its share."""
    share = share_words(account, account.parts[account.bound_by])
    return f"{share} of it is {account.bound_by}"


def _unread(account: Account) -> str:
    """Say how much of the step only the program's HLO can price; empty: nothing large."""
    unread = account.unread
    if unread is None or account.share(unread.us) < LARGE:
        return ""
    share = share_words(account, unread.us)
    return f"{share} of the step is {unread.what}, and only HLO prices an edit"


def saving_of(account: Account, item: Opportunity) -> Saving:
    """What an opportunity saves, as shares of the account's step."""
    expected = None if item.expected_us is None else account.share(item.expected_us)
    least_us, most_us = item.least_us, item.most_us
    return Saving(expected, account.share(least_us), account.share(most_us))


def actions(account: Account, span_of: SpanOf = nowhere) -> tuple[Advice, ...]:
    """Return the opportunities that can be combined and are worth a line, the largest first."""
    return tuple(advice_of(account, item, span_of) for item in listed(account))


def listed(account: Account) -> Iterator[Opportunity]:
    """The opportunities that can be combined and are worth a line, the largest first."""
    for item in chosen(account.opportunities):
        if item.comes_first or is_worth(account.share(item.at_stake_us)):
            yield item


def firsts(account: Account) -> tuple[Advice, ...]:
    """Return the advice that must be followed before any saving counts."""
    found = (item for item in listed(account) if item.comes_first)
    return tuple(advice_of(account, item) for item in found)


def advice_of(account: Account, item: Opportunity, span_of: SpanOf = nowhere) -> Advice:
    """Advise the edit of an opportunity."""
    first = item.where[0].instruction if item.where else ""
    said = [f"{item.why}{_most(item)}"]
    if item.tried and item.kind in OF_PROGRAM:
        said.append(f"tried: {item.tried}")
    elif item.not_tried:
        said.append(f"not tried: {item.not_tried}")
    has_share = item.at_stake_us > 0
    return Advice(
        title=item.title,
        saves=saving_of(account, item) if has_share else None,
        why=printable("; ".join(filter(None, said))),
        command=_command(item),
        find=first,
        span_us=span_of(first) if first else None,
    )


def follow(known: Known, commands: Mapping[Move, Next | None]) -> Next | Sentence:
    """Return the command of the next move, or a sentence if no command follows. The largest
    opportunity names the command that tries its edit.
    """
    move = next_move(known)
    lever = known.lever
    if move is Move.ADVISE and lever is not None and lever.command is not None:
        return lever.command
    return commands.get(move) or end_words(known)


def end_words(known: Known) -> Sentence:
    """Say why nothing follows: only the user can act, or nothing is left."""
    account = known.account
    lever = known.lever
    if account is not None and lever is not None:
        return to_act(account, lever)
    is_searched = known.search is not Search.NOT
    unproven = None if account is None else account.unproven
    if account is not None and unproven is not None:
        most = share_words(account, unproven.most_us)
        if unproven.tried:
            words = f"{_edit_of(unproven)}: saves at most {most}"
            measured = f"{words}; only a measurement tells"
            return Sentence.edit(measured, code=unproven.code)
        if not is_searched:
            words = f"at most {most} is open; to try it, give pgle the program"
            return Sentence.todo(f"{words}, or its module before optimizations")
    if account is None or is_searched:
        words = "no profile and no flag that pgle knows shortens this step"
        return Sentence.done(words)
    limit = figures.share(LEAST_GAIN)
    return Sentence.done(f"nothing above {limit} of the step is left to gain")


def _edit_of(item: Opportunity) -> str:
    """What to write for an opportunity, without the full stop."""
    return (item.edit or item.title).rstrip(".")


def to_act(account: Account, lever: Opportunity) -> Sentence:
    """Say what the user must write or set, where, and what it saves. Only a measurement can prove
    the saving.
    """
    share = share_words(account, lever.known_saving_us)
    saves = "" if lever.comes_first else f"saves {share}"
    if lever.kind in BY_SCHEDULE:
        words = _clauses(lowered(lever.title), saves)
        return Sentence.todo(f"{words}; then measure again")
    said = _edit_of(lever)
    if lever.kind not in OF_PROGRAM:
        return Sentence.todo(f"{_clauses(said, saves)}; then measure again")
    # the verdict goes first, because an edit can be several sentences
    where = lever.line or "the program"
    gains = f" to save {share}" if saves else ""
    end = ":" if lever.code else ""
    words = f"{where}{gains}, then rehearse. {said[:1].upper()}{said[1:]}{end}"
    return Sentence.edit(words, code=lever.code)


def _clauses(*said: str) -> str:
    """Join clauses with colons. Empty ones are left out."""
    return ": ".join(filter(None, said))


def _most(item: Opportunity) -> str:
    """Name the costliest of several places."""
    if len(item.where) < 2 or not item.where[0].us:
        return ""
    first = item.where[0]
    _, _, last_scope = first.instruction.rpartition("/")
    name = cut(last_scope, SCOPE_WIDTH)
    if name in item.why:
        return ""
    if item.kind is OpportunityKind.SLOW_STEPS:  # the finding has times of slow steps
        return f", most of it {name} ({figures.time(first.us)} of the mean step)"
    return f", most in {name} ({figures.time(first.us)})"


def _command(item: Opportunity) -> str:
    """Return the line for a shell that tries or sets an opportunity; empty if there is none."""
    if item.flag:
        return f'export XLA_FLAGS="$XLA_FLAGS {item.flag}"'
    return "" if item.command is None else to_type(item.command)


def note(account: Account) -> str:
    """Say which step the savings refer to, their sum, and which tried edits do not help. Unless a
    headline says it, add how much of the step only HLO can price.
    """
    said = [_base(account), _in_vain(account)]
    if not account.needs_module:
        said.append(_unread(account))
    return " ".join(map(sentence, filter(None, said)))


def _in_vain(account: Account) -> str:
    """List the tried edits that do not help, with their results; empty if there are none."""
    ended = dict.fromkeys(
        item.tried
        for item in account.opportunities
        if item.tried and item.at_stake_us <= 0 and item.kind in OF_PROGRAM
    )
    return f"tried in vain: {'; '.join(ended)}" if ended else ""


def _base(account: Account) -> str:
    """Say which step the savings are shares of, and what they come to together."""
    found = list(listed(account))
    if not found:
        return ""
    base = f"Savings are shares of the step {account.base}"
    is_other = account.base in (StepBase.ALONE, StepBase.TRACED)
    if is_other and any(item.tried and item.known_saving_us for item in found):
        base = f"{base}, what was tried of the predicted step"
    if account.together_us <= 0:
        return base
    together = share_words(account, account.together_us)
    also = _also_counted(account, found)
    counted = [item.known_saving_us for item in found]
    if not also and together == share_words(account, max(counted, default=0.0)):
        return base  # one saving is all of the sum
    doubt = " if they add" if account.only_if_added else ""
    return f"{base}; together {together}{doubt}{also}"


def _also_counted(account: Account, rows: Sequence[Opportunity]) -> str:
    """Say how many opportunities the sum counts that a screen does not list; empty: none."""
    shown = rows[:MOST_ACTIONS]
    none = share_words(account, 0.0)  # as it is written
    left = [
        item
        for item in chosen(account.opportunities)
        if share_words(account, item.known_saving_us) != none and item not in shown
    ]
    return f", with {len(left):,} more of --all" if left else ""


def timed_note(account: Account, *, is_base: bool) -> str:
    """Compare the account's step with the timed steps of the run directory.

    Args:
        is_base: the account's step is the one without the profile.
    """
    timed = account.timed
    if timed is None:
        return ""
    steps = " → ".join(map(figures.time, (timed.base_us, timed.step_us)))
    change = figures.signed(timed.change)
    least = figures.signed(timed.least)
    most = figures.signed(timed.most)
    ends = figures.between(least, most)
    said = f"Timed steps, {timed.basis}: {steps}, {change} ({ends}), {timed.verdict}"
    # the account is of another step than the timed ones
    if account.base is StepBase.ALONE:
        return f"{said}."
    timed_us = timed.base_us if is_base else timed.step_us
    off = figures.signed(account.step_us / timed_us - 1)
    return f"{said}; the model is {off} from them."


def bound_rows(account: Account) -> Iterator[tuple[str, float, float]]:
    """A row for each bound that is below the step: name, time, share of the step."""
    bounds = account.bounds
    named = (
        ("best order of these instructions", bounds.best_order_us),
        ("without communication", bounds.without_communication_us),
        ("without exposed copies", bounds.without_copies_us),
    )
    for name, us in named:
        if _is_below(account, us):
            yield name, us, account.share(us)


def _is_below(account: Account, us: float) -> bool:
    """Whether a bound is so far below the step that it is worth a line."""
    return is_worth(account.share(account.step_us - us))


def without_communication(account: Account) -> str:
    """Say in a line how long the step takes without collectives; empty if that is not worth one."""
    us = account.bounds.without_communication_us
    if not _is_below(account, us):
        return ""
    bound = f"{figures.time(us)} ({share_words(account, us)})"
    return f"Without communication the step would take {bound}."


def contention_note(account: Account) -> str:
    """What contention adds to the step; empty if that is not worth a line."""
    found = account.contention
    if found is None or not is_worth(account.share(found.us)):
        return ""
    return contention_words(account)


def contention_words(account: Account) -> str:
    """Say what contention adds to the step, and the source of its factors; empty if it adds
    nothing.
    """
    found = account.contention
    if found is None:
        return ""
    source = "measured" if found.launches else "assumed"
    adds = f"{figures.time(found.us)} ({share_words(account, found.us)})"
    slower = f"matmuls take {found.product:.2f}×, others {found.other:.2f}×"
    return f"contention adds {adds}: next to collectives {slower} ({source})"


def section(account: Account) -> Section:
    """Every opportunity with its edit, how it was found, and where."""
    parts = tuple(_parts(account))
    return Section("opportunities", "What would shorten the step", parts)


def _parts(account: Account) -> Iterator[Part]:
    """A heading, sentences and places for each opportunity, then what the savings refer to."""
    instead = excluded(account.opportunities)
    for number, item in enumerate(account.opportunities, start=1):
        saves = ""
        if item.at_stake_us > 0:
            saves = f": saves {saving_of(account, item)}, {item.basis}"
        yield Prose(f"{number}. {item.title}{saves}", tone="head")
        yield Prose(_sentences(item, instead.get(item.kind)))
        if item.code:
            yield Prose(item.code, code=True)
        places = item.where[:PLACES]
        finds = [place.instruction for place in places]
        yield table(PLACE, map(_place, places), finds=finds)
    yield Prose(note(account), tone="soft")


def _sentences(item: Opportunity, instead: OpportunityKind | None) -> str:
    """Return what was found, the edit, what it excludes and what was tried, each as a sentence."""
    said = [item.why, item.edit]
    if item.tried:
        said.append(f"tried: {item.tried}")
    if item.not_tried:
        said.append(f"not tried: {item.not_tried}")
    if instead is not None:
        said.append(f"it takes the place of '{instead}': only one of them counts")
    return printable(" ".join(map(sentence, filter(None, said))))


def sentence(text: str) -> str:
    """Return a clause as a sentence, with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


PLACE = ("in a step", Column("time", Unit.TIME), "where")
"""The heads of a table of places."""


def _place(place: Place) -> tuple[Value, ...]:
    """A row for an instruction: its time in a step, and its line and names."""
    about = "; ".join(filter(None, (place.note, place.source, place.op_name)))
    return printable(place.instruction), place.us or None, Cell(printable(about))


def lowered(title: str) -> str:
    """A title as a clause, with a small letter."""
    return f"{title[:1].lower()}{title[1:]}"


class ListedOpportunity(Document):
    """An opportunity; savings are shares of the account's step."""

    kind: OpportunityKind
    saves: Saving = flat()
    part: str
    basis: Basis
    title: str
    why: str
    edit: str
    code: str  # code to paste, which `edit` calls "this"; empty: there is none
    tried: str  # the result of trying the edit; empty: not tried
    not_tried: str  # why `advise` could not try it; empty: unknown
    # comes before all savings: the figures of the step do not include what it saves
    comes_first: bool
    command: Next | None
    flag: str
    where: tuple[Place, ...]


class AccountDocument(Document):
    """The account in JSON: times in microseconds, savings as shares of the step."""

    base: StepBase
    step_us: float
    interval_us: tuple[float, float | None]
    basis: Basis
    parts: Mapping[str, float]
    bounds: StepBounds
    timed: TimedSteps | None
    together: float  # of all opportunities, as a share of the step
    # no compiled program has all their edits, so that `together` adds savings
    only_if_added: bool
    contention: ContentionLoss | None
    opportunities: tuple[ListedOpportunity, ...]


def document(account: Account) -> AccountDocument:
    """Make the account part of an answer about a step."""
    items = [_listed_opportunity(account, item) for item in account.opportunities]
    return AccountDocument.of_value(
        account,
        interval_us=(account.least_us, account.most_us),
        parts={part.name.lower(): us for part, us in account.parts.items()},
        together=account.share(account.together_us),
        opportunities=tuple(items),
    )


def _listed_opportunity(account: Account, item: Opportunity) -> ListedOpportunity:
    """An opportunity in JSON, with its first places and its saving as shares of the step."""
    return ListedOpportunity.of_value(
        item,
        saves=saving_of(account, item),
        part=item.part.name.lower(),
        where=item.where[:PLACES],
    )
