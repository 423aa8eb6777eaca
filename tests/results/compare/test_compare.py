"""Comparisons: intervals and p values against known ones, verdicts, what is matched and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, mannwhitneyu

from benchsuite.results.compare.compare import Comparison, compare, holm, interval, least_p, rank_sums, repeats_needed
from benchsuite.results.compare.metrics import DEFAULT_OF, METRICS, chosen
from benchsuite.results.compare.sides import side
from benchsuite.results.report.compare import (
    COLUMNS,
    comparison_foot,
    comparison_head,
    comparison_json,
    comparison_rows,
)
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record

SPEED = chosen(["samples_per_s"])


def trials(rates: list[float], name: str = "a", **changes: Any) -> list[TrialRecord]:
    """Repeats of one point with these rates."""
    made = [
        made_record(n, record_id=f"{name}-{n}", trial_id=f"{name}.{n}", figures={"samples_per_s": rate}, session=name)
        for n, rate in enumerate(rates)
    ]
    return [record.model_copy(update=changes) for record in made]


def around(middle: float, count: int = 8, step: float = 0.001) -> list[float]:
    return [middle * (1 + step * (n - (count - 1) / 2)) for n in range(count)]


def above_one(count: int, au: float, name: str) -> list[TrialRecord]:
    """Eight repeats of 100 samples/s, so many with an AU of 1.3."""
    made = trials(around(100), name)
    for n, (record, value) in enumerate(zip(made, around(au), strict=True)):
        record.figures.au = 1.3 if n < count else value
        record.caveats = ["au_above_one"] if n < count else []
    return made


def only(found: Comparison) -> Any:
    (one,) = found.compared
    return one


class TestStatistics:
    def test_rank_sums_by_hand(self):
        """Of the six ways to place two among four, U is 0, 1, 2, 2, 3, 4."""
        assert rank_sums(2, 2) == pytest.approx([1 / 6, 1 / 6, 2 / 6, 1 / 6, 1 / 6])

    @pytest.mark.parametrize(("first", "second"), [(4, 4), (5, 7), (8, 8)])
    def test_rank_sums_are_scipys(self, first: int, second: int):
        one, other = [*range(first)], [*range(first, first + second)]
        exact = mannwhitneyu(one, other, alternative="less", method="exact").pvalue
        assert rank_sums(first, second)[0] == pytest.approx(exact)

    def test_interval_by_hand(self):
        """Four and four: the table of Wilcoxon's rank sum leaves out none but the ends at 2.9 %."""
        low, high = interval([1.0, 2.0, 4.0, 8.0], [16.0, 32.0, 64.0, 128.0])
        assert (low, high) == (2.0, 128.0)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_no_interval_of_few(self, count: int):
        assert interval([1.0] * count, [2.0] * count) == (None, None)

    def test_interval_covers_as_promised_and_is_no_wider_than_needed(self):
        rng = np.random.default_rng(0)
        pairs = [(rng.lognormal(0, 0.05, 8), 1.1 * rng.lognormal(0, 0.05, 8)) for _ in range(600)]
        found = [interval(one.tolist(), other.tolist()) for one, other in pairs]
        covered = np.mean([low <= 1.1 <= high for low, high in found if low and high])
        assert 0.93 <= covered <= 0.99
        one, other = pairs[0]
        ratio = bootstrap(
            (one, other), lambda a, b, axis: np.median(b, axis=axis) / np.median(a, axis=axis), rng=1, n_resamples=2000
        ).confidence_interval
        low, high = found[0]
        assert low is not None and high is not None
        assert high - low < 1.7 * (ratio.high - ratio.low)

    def test_many_repeats_use_the_normal_approximation(self):
        rng = np.random.default_rng(2)
        low, high = interval(rng.lognormal(0, 0.1, 60).tolist(), rng.lognormal(0, 0.1, 60).tolist())
        assert low is not None and high is not None and 0.9 < low < 1.0 < high < 1.1

    def test_holm_by_hand(self):
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.6, 0.7]) == [1.0, 1.0]

    def test_repeats_that_significance_needs(self):
        assert least_p(4, 4) == pytest.approx(2 / 70)
        assert (repeats_needed(1), repeats_needed(100)) == (4, 8)


class TestWords:
    """What is printed of A 100, 100, 200 and B 100, 200, 200: of nine ratios, .5 once, 1 four times, 2 four times."""

    ONE, OTHER = [100.0, 100.0, 200.0], [100.0, 200.0, 200.0]

    def cell(self, heading: str) -> str:
        (row,) = comparison_rows(compare(trials(self.ONE), trials(self.OTHER, "b"), SPEED))
        return next(column.cell(row) for column in COLUMNS if column.heading == heading)

    def test_the_ratio_is_that_of_pairs_and_that_of_medians_is_told_where_it_says_something_else(self):
        assert (self.cell("A median"), self.cell("B median"), self.cell("B / A [95 %]")) == ("100", "200", "1.000 [-]")
        assert "the medians' ratio is 2.000" in self.cell("why, caveats")

    def test_it_is_not_told_where_they_say_the_same(self):
        (row,) = comparison_rows(compare(trials(around(100)), trials(around(110), "b"), SPEED))
        assert all("medians" not in column.cell(row) for column in COLUMNS)

    def test_the_foot_says_what_the_ratio_is(self):
        method = comparison_foot(compare(trials(self.ONE), trials(self.OTHER, "b"), SPEED))[-1]
        assert "median of the ratios of all pairs" in method and "not the ratio of the two medians" in method

    def test_json_has_both(self):
        (one,) = comparison_json(compare(trials(self.ONE), trials(self.OTHER, "b"), SPEED))["comparisons"]
        assert (one["ratio"], one["ratio_of_medians"]) == (pytest.approx(1.0), 2.0)


class TestVerdicts:
    @pytest.mark.parametrize(
        ("ratio", "verdict"),
        [(1.1, "better"), (0.9, "worse"), (1.0, "same"), (1.004, "can't tell"), (0.996, "can't tell")],
    )
    def test_throughput(self, ratio: float, verdict: str):
        one = only(compare(trials(around(100)), trials(around(100 * ratio), "b"), SPEED))
        assert one.verdict == verdict
        assert one.ratio == pytest.approx(ratio, rel=0.002)
        assert one.low < ratio < one.high

    @pytest.mark.parametrize(("ratio", "verdict"), [(1.3, "worse"), (0.7, "better")])
    def test_seconds_go_the_other_way(self, ratio: float, verdict: str):
        one, other = (
            [
                t.model_copy(update={"figures": t.figures.model_copy(update={"first_batch_s": value})})
                for t, value in zip(trials(around(100), name), around(2 * scale), strict=True)
            ]
            for name, scale in (("a", 1.0), ("b", ratio))
        )
        assert only(compare(one, other, chosen(["first_batch_s"]))).verdict == verdict

    def test_few_repeats_cannot_tell_and_say_what_would(self):
        one = only(compare(trials(around(100, 3)), trials(around(50, 3), "b"), SPEED))
        assert (one.verdict, one.low) == ("can't tell", None)
        assert one.why == "needs 4 repeats a side for 1 comparisons, has 3 and 3"

    def test_wide_repeats_cannot_tell_and_say_how_many_would(self):
        one = only(compare(trials(around(100, 6, 0.005)), trials(around(101, 6, 0.005), "b"), SPEED))
        assert one.verdict == "can't tell"
        assert one.why.startswith("about ") and "repeats a side would tell 0.5%" in one.why

    def test_no_number_of_repeats_is_promised_where_it_is_out_of_reach(self):
        one = only(compare(trials(around(100, 6, 0.02)), trials(around(101, 6, 0.02), "b"), SPEED))
        assert one.why == "too noisy: 200 repeats a side would not tell 0.5%"

    def test_many_comparisons_need_more(self):
        """p = 2 / 70 of four against four is significant alone, and not among ten."""

        def many(rate: float, name: str) -> list[TrialRecord]:
            made = [trials(around(rate, 4), f"{name}{n}") for n in range(10)]
            return [t.model_copy(update={"spec": {"batch_size": n}}) for n, some in enumerate(made) for t in some]

        alone = compare(trials(around(100, 4)), trials(around(50, 4), "b"), SPEED)
        assert only(alone).verdict == "worse"
        found = compare(many(100, "a"), many(50, "b"), SPEED).compared
        assert [one.verdict for one in found] == ["can't tell"] * 10
        assert "needs 6 repeats a side for 10 comparisons" in str(found[0].why)

    def test_what_its_interval_tells_and_many_comparisons_hide_is_not_called_too_noisy(self):
        """U = 2 of six against six: p is 0.0087, ten times which is too much; the interval alone excludes 1."""

        def many(rates: list[float], name: str) -> list[TrialRecord]:
            made = [trials(rates, f"{name}{n}") for n in range(10)]
            return [t.model_copy(update={"spec": {"batch_size": n}}) for n, some in enumerate(made) for t in some]

        one, other = [100.0, 101.0, 102.0, 103.0, 104.0, 105.0], [103.5, 110.0, 111.0, 112.0, 113.0, 114.0]
        found = compare(many(one, "a"), many(other, "b"), SPEED).compared[0]
        assert (found.verdict, found.p) == ("can't tell", pytest.approx(10 * 8 / 924))
        assert found.low is not None and found.low > 1
        words = "not significant among 10 comparisons; 7 repeats a side would be, if B / A stays"
        assert found.why == words

    def test_a_caveat_on_one_side_is_no_verdict(self):
        loaded = trials(around(50), "b", caveats=["foreign_load"])
        one = only(compare(trials(around(100)), loaded, SPEED))
        assert (one.verdict, one.why, one.caveats) == ("can't tell", "foreign_load on one side only", ("foreign_load",))
        both = only(compare(trials(around(100), caveats=["foreign_load"]), loaded, SPEED))
        assert both.verdict == "worse"

    def test_repeats_with_a_caveat_are_left_out_where_others_have_none(self):
        mixed = trials(around(100), "b") + trials(around(10), "c", caveats=["foreign_load"], session="b")
        one = only(compare(trials(around(100)), mixed, SPEED))
        assert (one.verdict, one.repeats, one.left_out) == ("same", (8, 8), 8)
        (row,) = comparison_rows(compare(trials(around(100)), mixed, SPEED))
        assert next(c.cell(row) for c in COLUMNS if c.footnote) == "8 doubtful repeats left out; foreign_load"

    @pytest.mark.parametrize(
        ("one", "other", "words"),
        [(8, 8, "A and B"), (0, 8, "B"), (8, 0, "A")],
    )
    def test_utilization_above_one_is_no_result(self, one: int, other: int, words: str):
        """So many of eight repeats a side with AU 1.3, the others with 0.9 and 0.8."""
        found = compare(above_one(one, 0.9, "a"), above_one(other, 0.8, "b"), chosen(["au", "samples_per_s"])).compared
        au, rate = sorted(found, key=lambda one: one.metric.name)
        assert (au.verdict, au.why) == ("can't tell", f"au_above_one in every repeat of {words}: no result")
        assert rate.verdict == "same"

    def test_utilization_is_of_repeats_that_are_not_above_one(self):
        (au,) = compare(above_one(2, 0.9, "a"), above_one(0, 0.8, "b"), chosen(["au"])).compared
        assert (au.verdict, au.repeats, au.one) == ("worse", (6, 8), pytest.approx(0.9, rel=0.01))

    def test_several_sessions_count_by_their_medians(self):
        """Ten repeats of one night are one night."""
        nights = [t for n in range(4) for t in trials(around(100 + n, 10), f"n{n}")]
        one = only(compare(nights, trials(around(80, 10), "b"), SPEED))
        assert (one.unit, one.repeats, one.one, one.verdict) == ("sessions", (4, 1), pytest.approx(101.5), "can't tell")
        assert one.why == "needs 4 sessions a side for 1 comparisons, has 4 and 1"

    def test_metrics_without_values_are_left_out(self):
        found = compare(trials(around(100)), trials(around(100), "b"), METRICS)
        assert [one.metric.name for one in found.compared] == ["samples_per_s"]

    def test_an_unknown_metric(self):
        with pytest.raises(StoreError, match=r"metric 'sample_per_s' is not compared; .*nearest: samples_per_s"):
            chosen(["sample_per_s"])


class TestMatching:
    def spec(self, **data: Any) -> dict[str, Any]:
        return {"workload": "resnet50", "batch_size": 32, "data": {"format": "files", "root": "/a", **data}}

    def test_paths_do_not_matter(self):
        one = trials(around(100), spec=self.spec(), point_id="x", dataset={"dataset_id": "d"})
        there = trials(around(100), "b", spec=self.spec(root="/b"), point_id="y", dataset={"dataset_id": "d"})
        assert len(compare(one, there, SPEED).compared) == 1

    def test_fields_that_a_later_version_adds_do_not_matter(self):
        one = trials(around(100), spec=self.spec(), match_id="m")
        later = trials(around(100), "b", spec=self.spec() | {"added": "its default"}, match_id="m")
        assert len(compare(one, later, SPEED).compared) == 1
        with pytest.raises(StoreError, match="none is in both"):
            compare(one, trials(around(100), "b", spec=self.spec(), match_id="n"), SPEED)

    def test_what_measures_something_else_since_is_refused_with_the_reason(self):
        now = {"spec": self.spec(), "match_id": "n", "revision": "tp 2", "former_match_id": "m"}
        one = trials(around(100), spec=self.spec(), match_id="m")
        later = trials(around(50), "b", **now, revision_reason="tp 2: what it sends has 16 bits")
        with pytest.raises(StoreError, match="something else in A than in B: tp 2: what it sends has 16 bits"):
            compare(one, later, SPEED)
        files = trials(around(100), "c", spec=self.spec(format="hdf5"), match_id="o")
        (found,) = compare(files, [*one, *later], SPEED, {"spec.data.format": ("hdf5", "files")}).compared
        assert found.other == pytest.approx(50)  # not mixed with what was measured before

    @pytest.mark.parametrize("changes", [{"spec": {"batch_size": 64}}, {"dataset": {"dataset_id": "other"}}])
    def test_all_else_does(self, changes: dict[str, Any]):
        one = trials(around(100), spec={"batch_size": 32}, dataset={"dataset_id": "d"})
        other = trials(around(100), "b", **({"spec": {"batch_size": 32}, "dataset": {"dataset_id": "d"}} | changes))
        with pytest.raises(StoreError, match="A has 1 point and B 1, and none is in both"):
            compare(one, other, SPEED)

    @pytest.mark.parametrize(
        ("one", "other", "asked", "told"),
        [
            (
                [{"num_workers": 1}],
                [{"num_workers": 2}],
                ("session=a", "session=b"),
                "; they differ in data.num_workers (1 against 2): "
                "compare session=a,data.num_workers=1 session=b,data.num_workers=2",
            ),
            ([{"num_workers": 1}], [{"num_workers": 2}], None, "; they differ in data.num_workers (1 against 2)"),
            (
                [{"num_workers": n, "decode": "pil"} for n in (1, 2, 3, 4, 5)],
                [{"num_workers": 8, "decode": None}],
                ("session=a,data.num_workers=1", "session=b"),
                "; they differ in data.num_workers (1, 2, 3, 2 more against 8) and data.decode (pil against none): "
                "compare session=a,data.num_workers=1,data.decode=pil session=b,data.num_workers=8,data.decode=none",
            ),
            (
                [{"num_workers": n, "shuffle": True} for n in (1, 2)],
                [{"num_workers": n, "shuffle": False} for n in (2, 3)],
                ("session=a", "label=b c"),
                "; they differ in data.shuffle (true against false): "
                "compare session=a,data.shuffle=true 'label=b c,data.shuffle=false'",
            ),
            ([{"root": "/a"}, {"n": 1}], [{"n": 2}, {"m": 1}], ("session=a", "session=b"), ""),
        ],
    )
    def test_settings_in_which_sides_differ_are_told(
        self, one: list[dict[str, Any]], other: list[dict[str, Any]], asked: tuple[str, str] | None, told: str
    ):
        sides = [
            [
                record
                for number, data in enumerate(side)
                for record in trials([100], f"{name}{number}", spec={"data": data})
            ]
            for name, side in (("a", one), ("b", other))
        ]
        with pytest.raises(StoreError) as failed:
            compare(*sides, SPEED, asked=asked)
        assert str(failed.value).split("on the dataset's id")[1] == told

    def test_points_of_one_side_are_named(self):
        more = trials(around(9), "b2", spec={"batch_size": 1}, label="small")
        found = compare(trials(around(100)), trials(around(100), "b") + more, SPEED)
        assert (found.only_one, found.only_other) == ([], ["small"])
        assert "only in B: small" in comparison_foot(found)

    def test_a_resized_batch_is_never_compared_with_the_requested_one(self):
        env = made_record().env
        one = trials(around(100), spec=self.spec(), label="files")
        found = trials(around(100), "b", spec=self.spec(), env=env | {"batch_size_asked": "auto"})
        with pytest.raises(StoreError, match="requested: 32 in A and resized to 32 in B; a resized batch is never"):
            compare(one, found, SPEED)
        assert len(compare(found, found, SPEED).compared) == 1, "two that were resized alike are"

    def test_what_another_reader_read_is_never_compared(self):
        """A record from before there was a choice reads as what it did, and is that of our own reader."""
        data = {"format": "files", "source": "storage"}
        before, stock, tuned = (
            [
                TrialRecord.model_validate(one.model_dump() | {"spec": {"batch_size": 8, "data": data | reader}})
                for one in trials(around(100), name)
            ]
            for name, reader in (("a", {}), ("b", {"reader": "stock"}), ("c", {"reader": "tuned"}))
        )
        with pytest.raises(StoreError, match="read by tuned in A and by stock in B, which is another measurement"):
            compare(before, stock, SPEED)
        assert len(compare(before, tuned, SPEED).compared) == 1
        apart = {"spec.data.reader": ("stock", "tuned")}
        assert len(compare(stock, tuned, SPEED, apart).compared) == 1, "unless it is what is asked"

    def test_unlike_machines_are_refused(self):
        other = trials(around(100), "b", env=made_record().env | {"cores": 64})
        with pytest.raises(StoreError, match="not comparable: cores is 2 in A and 64 in B"):
            compare(trials(around(100)), other, SPEED)

    def test_drifting_facts_are_told(self):
        other = trials(around(100), "b", env=made_record().env | {"host": "there"})
        found = compare(trials(around(100)), other, SPEED)
        assert [(one.fact, one.one, one.other) for one in found.environment] == [("host", "here", "there")]
        assert comparison_foot(found)[0] == "environments: host here -> there"
        assert (
            comparison_head(found) == "B against A: 0 worse, 0 better, 1 same, 0 can't tell (1 comparison on 1 point)"
        )
        assert comparison_json(found)["environment"][0]["identity"] is False


class TestPaths:
    """Records of `probe storage`: of two paths, which may lie on unlike file systems."""

    @staticmethod
    def probes(path: str, kind: str, middle: float | None, access: str = "direct") -> list[Any]:
        spec = {"path": path, "size_bytes": 10**9, "access": access}
        env = made_record().env | {"data": {"file_system": kind}}
        rates = around(middle) if middle else [None] * 8
        names = around(1000)
        return [
            made_record(
                n,
                kind="probe",
                spec=spec,
                env=env,
                label=path,
                figures={"storage_ceiling_bytes_per_s": rate, "opens_per_s": opens},
            )
            for n, (rate, opens) in enumerate(zip(rates, names, strict=True))
        ]

    def test_two_file_systems(self):
        apart = {"spec.path": ("/a", "/b")}
        one, other = self.probes("/a", "ext4", 1e9), self.probes("/b", "nfs", 2e9, "buffered")
        found = compare(one, other, chosen(DEFAULT_OF["probe"]), apart)
        told = {one.metric.name: (one.label, one.verdict) for one in found.compared}
        assert told == {
            "storage_ceiling_bytes_per_s": ("/a -> /b", "better"),
            "opens_per_s": ("/a -> /b", "same"),
        }
        assert [one.fact for one in found.environment] == ["data.file_system"]

    def test_one_path_that_was_mounted_anew_is_not_the_same(self):
        one, other = self.probes("/a", "ext4", 1e9), self.probes("/a", "nfs", 2e9)
        with pytest.raises(StoreError, match=r"not comparable: data\.file_system is ext4 in A and nfs in B"):
            compare(one, other, chosen(DEFAULT_OF["probe"]))

    def test_memory_has_no_rates_of_reads(self):
        one, other = self.probes("/a", "ext4", 1e9), self.probes("/shm", "tmpfs", None, "memory")
        found = compare(one, other, chosen(DEFAULT_OF["probe"]), {"spec.path": ("/a", "/shm")})
        assert [one.metric.name for one in found.compared] == ["opens_per_s"]


class TestSides:
    @pytest.fixture
    def store(self, tmp_path: Path) -> ResultsStore:
        store = ResultsStore(tmp_path / "store")
        for n, (session, commit) in enumerate([("mon", "abc1"), ("tue", "abd2"), ("wed", None)]):
            moment = f"2026-01-0{n + 5}T03:00:00+00:00"
            fields = {"session": session, "trial_id": session, "started_at": moment, "spec": {"world_size": n + 1}}
            store.append(made_record(n, **fields, env={"commit": commit}))
        store.append(made_record(9, trial_id="lost", status="failed", session="mon"))
        return store

    @pytest.mark.parametrize(
        ("text", "sessions"),
        [
            ("session=mon", ["mon"]),
            ("commit=ab", ["mon", "tue"]),
            ("commit=abd", ["tue"]),
            ("date=2026-01-06", ["tue"]),
            ("date=2026-01-05..2026-01-06", ["mon", "tue"]),
            ("date=2026-01-06..", ["tue", "wed"]),
            ("date=..2026-01-06", ["mon", "tue"]),
            ("spec.world_size=3", ["wed"]),
            ("world_size=3", ["wed"]),
            ("date=2026-01-06..,spec.world_size=2", ["tue"]),
        ],
    )
    def test_filters(self, store: ResultsStore, text: str, sessions: list[str]):
        assert [record.session for record in side(store.path, text)] == sessions

    @pytest.mark.parametrize(
        ("wanted", "sessions"),
        [
            ("0123456789abcdef0123456789abcdef01234567", ["clean"]),
            ("0123456789ab", ["clean"]),
            ("01234", ["clean"]),
            ("01234-dirty", ["changed"]),
            ("fedcba9876543210fedcba9876543210fedcba98", ["tagged"]),
            ("v0.1-3", ["tagged"]),
        ],
    )
    def test_commits_with_more_digits_than_records_have_and_changed_work_trees(
        self, tmp_path: Path, wanted: str, sessions: list[str]
    ):
        store, commits = ResultsStore(tmp_path), ("0123456789ab", "0123456789ab-dirty", "v0.1-3-gfedcba987654", "0")
        for n, (name, commit) in enumerate(zip(("clean", "changed", "tagged", "short"), commits, strict=True)):
            store.append(made_record(n, session=name, trial_id=name, env={"commit": commit}))
        assert [record.session for record in side(store.path, f"commit={wanted}")] == sessions

    def test_a_store(self, store: ResultsStore, tmp_path: Path):
        assert len(side(tmp_path / "nowhere", str(store.path))) == 3

    def test_mistakes(self, store: ResultsStore) -> None:
        cases = [
            "session=fri",
            "sesion=mon",
            "date=2025-01-01",
            "elsewhere",
            "session=mon,tue",
            "session=mon,tue=",
        ]

        def message(text: str) -> str:
            with pytest.raises(StoreError) as caught:
                side(store.path, text)
            return str(caught.value)

        compare_messages("compare_sides", cases, message, {str(store.path): "STORE"})
