"""The answer above a table of points: which choice to use, what cannot be told from it, and what limits it now."""

from collections import Counter
from collections.abc import Callable, Sequence

from benchsuite.results.render import judged
from benchsuite.results.render.tables import Row, is_missing, number
from benchsuite.results.render.words import and_, counted
from benchsuite.results.report.ranking import DISTURBING, MAX_REPEATS_TOLD, Choice, Contest
from benchsuite.results.store.verdicts import CANNOT_TELL

MAX_EVIDENCE = 8
MAX_NAMED = 3
"""Choices that a sentence names; the table has the others."""
INCURABLE = "not_read"
"""The caveat of choices that are fast because they read nothing: measuring again changes that in nothing."""
PARTS = {
    "load_s": "wait {} longer for input",
    "h2d_s": "copy to the device for {} longer",
    "forward_s": "go forward for {} longer",
    "backward_s": "go backward for {} longer",
    "communication_s": "have {} more of exposed communication",
    "optimizer_s": "take {} longer in the optimizer",
}
"""What a slower choice's steps do."""


def answer(points: Sequence[Row], found: Sequence[Contest]) -> list[str]:
    """What the points say: a paragraph for each set of choices that can be compared."""
    ok = [row for row in points if row["status"] == "ok"]
    if not ok:
        return ["No point has a result."]
    told = [_of_contest(contest) for contest in found if len(contest.choices) > 1]
    return told or [_of_points(ok)]


def evidence(points: Sequence[Row], found: Sequence[Contest]) -> list[str]:
    """What the verdicts rest on that the answer names: a line for each set of choices, else for each point."""
    named = [max(contest.choices, key=lambda one: one.value or 0.0) for contest in found if not contest.ranked]
    rows = [choice.row for choice in (*(contest.ranked[0] for contest in found if contest.ranked), *named)]
    alone = [row for row in points if row["status"] == "ok"] if not any(len(one.choices) > 1 for one in found) else []
    return [f"{row['label']}: {why}" for row in (alone or rows)[:MAX_EVIDENCE] if (why := _evidence(row))]


def _of_contest(contest: Contest) -> str:
    """Which choice to use, and why not the others."""
    at = f"{contest.title}: " if contest.title else ""
    unranked = [choice for choice in contest.choices if choice.rank is None]
    if not contest.ranked:
        no = f"{at}{'no' if at else 'No'} choice can be recommended"
        said = f"{no}: {_named(unranked)} were disturbed; measure again on an idle machine."
        most = max(unranked, key=lambda choice: choice.value or 0.0)
        return f"{said} As it was measured, {most.label} gave the most: {_value(contest, most)}. {_limit(most.row)}"
    best, *others = contest.ranked
    reach = best.high or best.value or 0.0
    more = [
        choice for choice in unranked if (choice.value or 0.0) > reach and INCURABLE not in str(choice.why_unranked)
    ]
    rest = [choice for choice in unranked if all(choice is not one for one in more)]
    tied = [choice for choice in others if not choice.told_apart]
    apart = [choice for choice in others if choice.told_apart]
    if not more and tied and not apart and None in [choice.more_repeats for choice in tied[:MAX_NAMED]]:
        sentences = [_no_difference(contest, at, best, tied)]
    else:
        use = f"{at}{'use' if at else 'Use'} {best.label}: {_value(contest, best)}."
        sentences = _undecided(contest, at, best, more) if more else [use]
        sentences += [_tied(contest, tied)] if tied else []
    sentences += [_slower(contest, best, choice) for choice in apart[: MAX_NAMED - 1]]
    sentences += [_limit(best.row)]
    if rest:
        sentences.append(f"{_named(rest)} {'are' if len(rest) > 1 else 'is'} not ranked: {_why(rest)}.")
    return " ".join(filter(None, sentences))


def _undecided(contest: Contest, at: str, best: Choice, more: Sequence[Choice]) -> list[str]:
    """Say that choices without a rank gave more than the best that has one."""
    names = _named(more, lambda choice: f"{choice.label} ({_value(contest, choice)})")
    cannot = f"{at}{'it' if at else 'It'} cannot be said yet which to use"
    return [
        f"{cannot}: {names} gave more than any that can be ranked, but {_why(more)}; measure again.",
        f"The best of the others is {best.label}: {_value(contest, best)}.",
    ]


def _why(unranked: Sequence[Choice]) -> str:
    """Why choices have no rank."""
    caveats = dict.fromkeys(name for choice in unranked for name in str(choice.why_unranked).split(", "))
    return and_([DISTURBING.get(name, name) for name in caveats])


def _no_difference(contest: Contest, at: str, best: Choice, tied: Sequence[Choice]) -> str:
    """Say that all choices are alike, as far as any number of repeats could tell."""
    names = _named([best, *tied], lambda choice: f"{choice.label} ({_value(contest, choice)})")
    no = f"{at}{'it' if at else 'It'} makes no difference which is used"
    return f"{no}: {names} cannot be told apart, and not even {MAX_REPEATS_TOLD} more repeats would."


def _value(contest: Contest, choice: Choice) -> str:
    """A choice's measure with its interval."""
    told = contest.measure.told
    ends = "" if choice.low is None or choice.high is None else f" [{told(choice.low)} {told(choice.high)}]"
    return f"{told(choice.value or 0.0)} {contest.measure.unit}{ends}"


def _tied(contest: Contest, tied: Sequence[Choice]) -> str:
    """The choices that cannot be told from the best, and what would."""
    names = _named(tied, lambda choice: f"{choice.label} ({_value(contest, choice)})")
    known = [choice.more_repeats for choice in tied[:MAX_NAMED]]
    if None in known:
        would = f"not even {MAX_REPEATS_TOLD} more repeats would"
    else:
        most = max(count for count in known if count is not None)
        would = f"{counted(most, 'more repeat')} would probably tell"
    return f"{names} cannot be told from it: {would}."


def _slower(contest: Contest, best: Choice, choice: Choice) -> str:
    """Say by how much a choice is worse, and in which part of the step."""
    share = 1 - (choice.against_best or 0.0)
    said = f"{choice.label} is {share:.0%} {contest.measure.worse}"
    because = _because(best.row, choice.row)
    return f"{said}: {because}." if because else f"{said}."


def _because(best: Row, other: Row) -> str:
    """What a worse choice's steps do longer, if they take as many samples; empty where no part tells."""
    if any(is_missing(row.get(name)) for row in (best, other) for name in ("step_s_mean", "samples_per_s")):
        return ""
    samples = [row["step_s_mean"] * row["samples_per_s"] for row in (best, other)]
    if min(samples) <= 0 or abs(samples[0] / samples[1] - 1) > 0.2:
        return ""
    longer = {
        name: other[name] - best[name]
        for name in PARTS
        if not is_missing(best.get(name)) and not is_missing(other.get(name))
    }
    most = max(longer, key=lambda name: longer[name], default="")
    if not most or longer[most] <= 0:
        return ""
    said = f"its steps {PARTS[most].format(f'{longer[most] * 1e3:.3g} ms')}"
    return said + (_input(best, other) if most == "load_s" else "")


def _input(best: Row, other: Row) -> str:
    """How long a reader takes for a sample, of a choice that waits for input and of the best."""
    names = ("read_s_per_sample", "decode_s_per_sample")
    if any(is_missing(row.get(name)) for row in (best, other) for name in names):
        return ""
    read, decode = (f"{other[name] * 1e3:.3g} ms (the best: {best[name] * 1e3:.3g})" for name in names)
    return f"; a reader reads a sample for {read} and prepares it for {decode}"


def _limit(row: Row) -> str:
    """What limits a point now, and what may help, a sentence each."""
    verdict, remedy = row.get("bottleneck"), row.get("bottleneck_remedy")
    if is_missing(verdict) or not verdict:
        return ""
    if verdict == CANNOT_TELL:
        why = _evidence(row)
        return f"What limits it is unknown{f': {why}' if why else ''}."
    if verdict == "none":
        return "Nothing holds it back."
    helps = "" if is_missing(remedy) or not remedy else f" {judged.advice(remedy)}"
    if verdict == "mixed":
        why = _evidence(row)
        return f"It is limited by several things{f': {why}' if why else ''}.{helps}"
    cause = None if is_missing(row.get("cause")) else row["cause"]
    return f"It is limited by {judged.limit(str(verdict), cause)}.{helps}"


def _evidence(row: Row) -> str:
    """What a point's verdict rests on; empty where that is not known."""
    why = row.get("bottleneck_evidence")
    return "" if is_missing(why) or not why else _of_a_repeat(row, str(why))


def _of_a_repeat(row: Row, why: str) -> str:
    """A point's evidence, which is of one repeat; said where that has another AU than the point."""
    au = row.get("au")
    is_other = why.startswith("AU ") and not is_missing(au) and not why.startswith(f"AU {au:.2f}")
    return f"{why} (of the repeat that stands for it)" if is_other else why


def _of_points(ok: Sequence[Row]) -> str:
    """What points say of which no two are choices: what holds them back, and most of all."""
    verdicts = Counter(str(row["bottleneck"]) for row in ok if not is_missing(row.get("bottleneck")))
    known = [row for row in ok if not is_missing(row.get("bottleneck"))]
    if not known:
        alone = f"{ok[0]['label']}: {number(ok[0], 'samples_per_s', digits=0)} samples/s."
        return alone if len(ok) == 1 else "No point has a verdict."
    if len(ok) == 1:
        why = [said for name, said in DISTURBING.items() if name in ok[0]["caveats"]]
        return f"{ok[0]['label']}{f' (doubtful: {and_(why)})' if why else ''}: {_limit(ok[0])}"
    untold = verdicts.pop(CANNOT_TELL, 0)
    if not verdicts:
        return f"What limits these {len(ok)} points cannot be told."
    held = and_([f"{name.replace('_', ' ')} in {count}" for name, count in verdicts.most_common()])
    held += f" of {len(ok)} points" + (f" (in {untold} it cannot be told)" if untold else "")
    waiting = [row for row in known if not is_missing(row.get("input_stall_fraction"))]
    if not waiting:
        return f"Limited by {held}."
    worst = max(waiting, key=lambda row: row["input_stall_fraction"])
    return f"Limited by {held}. {worst['label']} waits most for input. {_limit(worst)}"


def _named(choices: Sequence[Choice], name: Callable[[Choice], str] = lambda choice: choice.label) -> str:
    """The first few choices, and how many more."""
    names = [name(choice) for choice in choices[:MAX_NAMED]]
    more = [f"{len(choices) - MAX_NAMED} more"] if len(choices) > MAX_NAMED else []
    return and_([*names, *more])
