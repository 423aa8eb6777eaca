"""Plans: order, figures, intervals, why the second loses, what if, and what does not fit."""

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import machines, models, plan_report
from benchsuite_plan.layout.candidates import Choices, Job
from benchsuite_plan.layout.layout_search import parted, plan, ranked, what_if
from benchsuite_plan.layout.memory import footprint
from benchsuite_plan.layout.models import params
from planner.tests.small import GB, job, layout, machine, model

NEOX = Job(models.load("gpt-neox-20b"), machines.load("polaris"), 96, 1536)


class TestPlan:
    def test_best_first_and_all_fit(self):
        found = plan(NEOX, Choices(), samples=1e6)
        steps = [each.step_s.value for each in found.best]
        assert len(found.best) == 10 and steps == sorted(steps)
        assert [each.rank for each in found.best] == [*range(1, 11)]
        assert all(each.memory_bytes < 42.9e9 for each in found.best)
        assert len({(each.tp, each.pp, each.zero, each.recompute) for each in found.best}) == 10
        assert found.num_fitting < found.num_valid

    def test_figures_hang_together(self):
        best = plan(NEOX, Choices(), samples=1e6, top=1).best[0]
        assert best.step_s.low < best.step_s.value < best.step_s.high
        assert best.samples_per_s.value == pytest.approx(1536 / best.step_s.value)
        assert best.days and best.device_hours and best.mfu and best.tflops_per_device
        assert best.days.value == pytest.approx(1e6 / 1536 * best.step_s.value / 86400)
        assert best.device_hours.high == pytest.approx(96 * 24 * best.days.high)
        assert best.mfu.value == pytest.approx(best.tflops_per_device.value / 312)
        flops = 6 * params(NEOX.model) * 2048 * 1536 / 96 / best.step_s.value / 1e12
        assert best.tflops_per_device.value == pytest.approx(flops, rel=0.08), "6 P a token, and attention"
        assert sum(best.parts_s.values()) == pytest.approx(best.step_s.value)
        assert best.bubble_share.value == pytest.approx(best.parts_s["bubble_s"] / best.step_s.value)
        assert best.input_share.value == 0
        hidden = [best.parts_s[name] for name in ("tensor_s", "pipeline_s", "data_s")]
        assert best.communication_share.value == pytest.approx(sum(hidden) / best.step_s.value)

    def test_energy_by_hand(self):
        best = plan(NEOX, Choices(), samples=1e6, top=1).best[0]
        assert best.energy_kwh and best.device_hours
        watts = 0.8 * 1.35 * 400
        assert best.energy_kwh.value == pytest.approx(best.device_hours.value * watts / 1000)
        dgx = replace(NEOX, machine=machines.load("berzelius"))
        there = plan(dgx, Choices(), samples=1e6, top=1).best[0]
        assert there.energy_kwh and there.device_hours
        assert there.energy_kwh.value == pytest.approx(there.device_hours.value / 8 * 0.8 * 6.5)

    def test_nothing_is_invented(self):
        best = plan(NEOX, Choices(), top=1).best[0]
        assert best.days is best.device_hours is best.energy_kwh is None
        unknown = models.load("openfold").model_copy(update={"device_sample_s": 3.0})
        openfold = Job(unknown, machines.load("polaris"), 8, 8)
        found = plan(openfold, Choices(), samples=10.0)
        told = plan_report.notes(openfold, found)
        assert found.first.tflops_per_device is found.first.mfu is found.first.activation_bytes is None
        assert any("activations of openfold are not known" in note for note in told)
        assert any("data parallelism and ZeRO only" in note for note in told)

    def test_the_same_seed_plans_the_same(self):
        found, again, other = (plan(NEOX, Choices(zero=(1,)), top=2, seed=seed) for seed in (0, 0, 1))
        assert found == again
        assert other.best[0].step_s.value == found.best[0].step_s.value
        assert other.best[0].step_s.high != found.best[0].step_s.high

    def test_why_the_second_loses(self):
        fixed = Choices(zero=(1,))
        order, _ = parted(NEOX, fixed)
        gap = float(order.cost.step_s[1] - order.cost.step_s[0])
        found = plan(NEOX, fixed)
        second = found.best[1]
        told = plan_report.why(found)
        assert f"tp {second.tp} pp {second.pp} dp {second.dp}" in told
        assert f"takes {gap:.3g} s a step" in told and "of 2,000 random draws of what is assumed" in told
        worst = max(second.parts_s, key=lambda name: second.parts_s[name] - found.best[0].parts_s[name])
        assert f") more: {plan_report.PARTS[worst]} +" in told, "what costs most stands first"

    def test_words_tell_the_best_what_limits_it_what_would_help_and_what_was_left_out(self):
        llama = Job(models.load("llama3-8b"), machines.load("dgx-h100"), 8, 4, recipe="trial")
        fixed = Choices(zero=(0,), recompute=("none",), microbatch=(1,), tensor_parallel=(2,))
        found = plan(llama, fixed)
        told = [*plan_report.words(found, llama)]
        best = found.best[0]
        assert told[0].startswith(f"The best layout that trials run is {best.name}: {best.step_s.value:.3f} [")
        share = best.parts_s["compute_s"] / best.step_s.value
        assert f"Its step goes to computation {share:.0%}, " in told[2] and " of 86 GB." in told[2]
        assert found.too_large and found.too_large.step_s.value < best.step_s.value
        assert f"needs {found.too_large.memory_bytes / 1e9:.0f} GB a device." in told[-1]
        assert f"is refused by trials: {found.refused[0].reason}." in told[-2]
        (help,) = [line for line in told if line.startswith("What would help: ")]
        twice = replace(llama, batch=8)
        longer = plan(twice, replace(fixed, pipeline_parallel=(best.pp,), interleave=(best.interleave,))).best[0]
        saved = 1 - longer.step_s.value / 2 / best.step_s.value
        assert f"twice the batch saves {saved:.0%}" in help

    def test_equal_layouts_are_called_so(self):
        conv = Job(models.load("resnet50"), machines.load("polaris"), 4, 64)
        assert "takes as long" in plan_report.why(plan(conv, Choices(zero=(1, 2), microbatch=(16,))))
        assert plan_report.why(plan(conv, Choices(zero=(0,), microbatch=(16,)))) == "No other layout fits."

    def test_notes_tell_what_is_not_known(self):
        notes = plan_report.notes(NEOX, plan(NEOX, Choices(), top=1))
        assert any("oversubscription of polaris" in note for note in notes)
        there = replace(NEOX, machine=machines.load("dgx-a100"))
        dgx = plan_report.notes(there, plan(there, Choices(), top=1))
        assert dgx == ("bandwidth of dgx-a100's shared file system is not known: input is taken to keep up",)

    def test_four_thousand_devices(self):
        large = Job(models.load("gpt3-175b"), machines.load("dgx-a100"), 4096, 4096)
        assert len(plan(large, Choices()).best) == 10


class TestParted:
    def test_nothing_is_lost_and_nothing_predicted_anew(self):
        every, parts = ranked(NEOX, Choices()), parted(NEOX, Choices())
        keys = [{of.layouts.key(at) for at in range(len(of.layouts))} for of in (every, *parts)]
        assert keys[0] == keys[1] | keys[2]
        steps = {of.layouts.key(at): float(of.cost.step_s[at]) for of in parts[::-1] for at in range(len(of.layouts))}
        assert all(float(every.cost.step_s[at]) <= steps[every.layouts.key(at)] for at in range(len(every.layouts)))
        assert float(every.cost.step_s[0]) == min(float(of.cost.step_s[0]) for of in parts)
        assert sum(of.num_fitting for of in parts) == every.num_fitting

    def test_microbatches_are_tuned_among_what_runs(self):
        """With interleaving free the fastest of most degrees holds more chunks a stage than trials have."""
        job = Job(models.load("llama2-70b"), machines.load("dgx-a100"), 512, 1536)
        run, refused = parted(job, Choices(zero=(0,)))
        assert set(run.layouts.interleave.tolist()) == {1, 2} and max(refused.layouts.interleave) > 2
        one = {name: int(getattr(refused.layouts, name)[0]) for name in ("tp", "pp", "dp")}
        assert run.rank_of(**one) is not None
        assert (
            refused.reasons[0]
            == f"interleave {refused.layouts.interleave[0]}: schedule interleaved holds 2 stages a rank"
        )


class TestTooLarge:
    def error(self, choices: Choices, **changes: Any) -> str:
        with pytest.raises(UserError) as raised:
            plan(replace(NEOX, **changes), choices)
        return str(raised.value)

    def test_says_the_least_memory_and_how_many_devices_would_do(self):
        line = self.error(Choices(), devices=4, batch=16)
        least = footprint(replace(NEOX, devices=4, batch=16), layout(tp=4, num_microbatches=16, recompute=2))
        assert f"at least {float(least.total[0]) / GB:.1f} GB" in line
        assert "nothing fits" in line and "it would fit on" in line and "39.3 of 42.9 GB" in line
        enough = int(line.partition("fit on ")[2].split()[0])
        assert plan(replace(NEOX, devices=enough, batch=16), Choices()).best, "the same global batch"
        with pytest.raises(UserError):
            plan(replace(NEOX, devices=enough // 2, batch=16), Choices())

    def test_says_which_option_to_free(self):
        line = self.error(Choices(zero=(0,), tensor_parallel=(1,), pipeline_parallel=(1,)))
        assert "leave --zero free" in line
        tight = Choices(zero=(3,), recompute=("none",), tensor_parallel=(1,), microbatch=(16,))
        assert "leave --recompute free" in self.error(tight)

    def test_more_devices_than_there_are(self):
        assert "560 nodes x 4 = 2240" in self.error(Choices(), devices=4096)

    def test_no_whole_nodes(self):
        assert "nearest: 96 or 100" in self.error(Choices(), devices=98)


class TestWhatIf:
    def test_each_change_alone(self):
        changes = {"network": 2.0, "device": 2.0, "data": 0.5}
        found = what_if(NEOX, Choices(), changes, samples=1e6)
        assert [*found] == ["as it is", "network x2", "device x2", "data x0.5"]
        now = found["as it is"]
        assert now == plan(NEOX, Choices(), samples=1e6, top=1).best[0]
        assert now.step_s.value / 2 < found["device x2"].step_s.value < 0.6 * now.step_s.value
        assert 0.9 * now.step_s.value < found["network x2"].step_s.value < now.step_s.value
        assert found["data x0.5"].step_s == now.step_s
        assert now.days and found["data x0.5"].days
        assert found["data x0.5"].days.value == pytest.approx(now.days.value / 2)

    def test_a_faster_storage_where_it_is_what_holds(self):
        slow = machine(storage={"shared_read_bytes_per_s": 1e6})
        stored = job(2, model=model(sample_bytes=1e6), machine=slow)
        found = what_if(stored, Choices(), {"storage": 2.0})
        assert found["as it is"].step_s.value == pytest.approx(8.0 / 0.8)
        assert found["storage x2"].step_s.value == pytest.approx(4.0 / 0.8)
        assert found["as it is"].step_s.low == pytest.approx(8.0 / 0.95, rel=0.02)
        assert found["as it is"].input_share.value > 0.99
        assert found["as it is"].recompute == "none", "all wait as long: the least busy is best"

    def test_of_equals_the_fewest_microbatches(self):
        conv = Job(models.load("resnet50"), machines.load("polaris"), 1, 64)
        assert plan(conv, Choices()).best[0].num_microbatches == 1

    def test_an_unknown_change(self):
        with pytest.raises(UserError, match=r"--what-if 'netwrk'.*nearest: network"):
            what_if(NEOX, Choices(), {"netwrk": 2.0})
