"""What can be asked of storage: the data axes of a trial (no heavy imports)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from benchsuite.storage import is_one_reader
from benchsuite.storage.dataset.local_path import data_root, local_path

Source = Literal["storage", "memory", "synthetic"]
Cache = Literal["cold", "warm", "direct"]
ImageDtype = Literal["float32", "uint8"]
Local = Annotated[str, AfterValidator(local_path)]
Root = Annotated[str, AfterValidator(data_root)]


class DataSpec(BaseModel):
    """Where samples come from and how they are brought to the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    root: Root | None = Field(
        None,
        description="a dataset, or a folder with one dataset per format: <root>/<format>/; or s3://bucket/prefix",
    )
    format: str = Field("files", description="how samples are stored: a name of storage.FORMATS")
    reader: str | None = Field(
        None,
        description="stock: as the format's own library tells users to read; tuned: our own reading of the same bytes, "
        "which loads a storage system from few cores; datasets: Hugging Face's, of parquet; path/to/mine.py:READER: "
        "yours; default: tuned with loader threads, else stock",
    )
    loader: str = Field("torch", description="who turns them into batches: a name of storage.LOADERS")
    source: Source = Field(
        "storage", description="the real pipeline, one real batch again and again, or made on device"
    )
    cache: Cache = Field(
        "cold", description="page cache before the first read: evicted, read in, or read past (O_DIRECT)"
    )
    staging: Literal["none", "copy", "lazy"] = Field(
        "none", description="copy to a node-local folder: before the first step, or each file as it is first read"
    )
    staging_dir: Local | None = Field(None, description="where copies go; default: $SLURM_TMPDIR, else $TMPDIR or /tmp")
    num_workers: int = Field(2, ge=0, le=256, description="loader processes or threads per rank; 0 reads in line")
    prefetch_factor: int = Field(2, ge=1, le=64, description="batches each worker keeps ready")
    pin_memory: bool = Field(True, description="page-locked batches; without effect on cpu")
    shuffle: bool = Field(True, description="a new order every epoch, the same for the same seed")
    shuffle_buffer: int = Field(
        100,
        ge=1,
        le=1_000_000_000,
        description="samples mixed per reader, of shards or by DALI",
    )

    image_dtype: ImageDtype = Field(
        "float32", description="uint8: images travel as bytes, a quarter as many, and are normalised on the device"
    )

    @property
    def readers(self) -> int:
        """Readers of one rank that share an epoch with those of the others; DALI's threads are one reader."""
        return 1 if is_one_reader(self.loader) else max(1, self.num_workers)

    @property
    def queue_batches(self) -> int:
        """Batches that a full prefetch queue holds."""
        return self.prefetch_factor * (min(1, self.num_workers) if is_one_reader(self.loader) else self.num_workers)
