"""What is typed: an example or two for the help of every verb, by its words."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("benchsuite demo",),
    "doctor": ("benchsuite doctor /scratch",),
    "advise": ("benchsuite advise ~/photos --minutes 5",),
    "sweep": (
        "benchsuite sweep formats -o data.root=/data/imagenet --dry-run",
        "benchsuite sweep mine.yaml --session 2026-11-20 --until +2h",
    ),
    "trial": (
        "benchsuite trial spec.yaml -o precision=bf16 --profile io",
        "benchsuite trial spec.yaml -o world_size=512 --validate",
    ),
    "data generate": ("benchsuite data generate data/kits/hdf5 --workload unet3d --format hdf5 --samples 168",),
    "data convert": ("benchsuite data convert ~/photos data/photos/files --workload resnet50 --format files",),
    "data verify": ("benchsuite data verify data/photos/files data/photos/webdataset",),
    "data stage": ("benchsuite data stage data/kits/hdf5 --to /local/nvme",),
    "probe storage": ("benchsuite probe storage /scratch --store benchsuite-store",),
    "probe checkpoint": ("benchsuite probe checkpoint /scratch --workload resnet50 --world-size 2 --mode async",),
    "probe comm": ("benchsuite probe comm --op all_reduce --sizes 64KiB:1MiB --overlap",),
    "submit": ("benchsuite submit slurm mine.yaml --mode array --array-tasks 4 --time 02:00:00 --dry-run",),
    "status": ("benchsuite status mine.yaml --session 2026-11-20",),
    "report": ("benchsuite report --session latest", "benchsuite report --html report.html"),
    "results show": ("benchsuite results show --by point --format csv",),
    "results query": ("benchsuite results query 'select label, au from trials order by au'",),
    "results compact": ("benchsuite results compact --store /scratch/bs",),
    "results profile": ("benchsuite results profile 0b6a9cbaa9d5.default.0",),
    "results darshan": ("benchsuite results darshan job.darshan --under /data",),
    "results export csv": ("benchsuite results export csv --out trials.csv --by point",),
    "results export parquet": ("benchsuite results export parquet --out trials.parquet",),
    "results export junit": ("benchsuite results export junit --check --out junit.xml",),
    "results export prometheus": ("benchsuite results export prometheus --out /var/lib/node_exporter/textfile",),
    "results export latex": ("benchsuite results export latex --where session=tonight",),
    "results export methods": ("benchsuite results export methods --latex",),
    "results export trace": ("benchsuite results export trace 0b6a9cbaa9d5.default.0 out.json",),
    "results export asv": ("benchsuite results export asv --store batch --machine cluster --commit HEAD",),
    "compare": (
        "benchsuite compare session=monday session=tuesday",
        "benchsuite compare data.format=files data.format=lmdb",
    ),
    "baseline set": ("benchsuite baseline set --date 2026-11-01..2026-11-14",),
    "baseline show": ("benchsuite baseline show",),
    "check": ("benchsuite check --session latest",),
    "scaling": ("benchsuite scaling --where data.format=hdf5 --svg figures",),
    "predict": ("benchsuite predict --ranks 16,64", "benchsuite predict --table steps.csv --ranks 3360"),
    "plan": ("benchsuite plan --model gpt-neox-20b --machine polaris --devices 96 --batch 1536 --top 3",),
    "list": ("benchsuite list machines",),
    "schema": ("benchsuite schema trial",),
}


def epilog(words: str, more: str | None) -> str:
    """The end of a verb's help: its examples as they are typed, and what else the verb says there."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES.get(words, ()))
    examples = f"\b\nExamples:\n{lines}" if lines else ""
    return "\n\n".join(filter(None, (examples, more)))
