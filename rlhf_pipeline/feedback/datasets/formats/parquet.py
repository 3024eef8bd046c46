"""Parquet with the schema's types, compressed by zstd."""

from collections.abc import Iterable
from typing import IO, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_pipeline.core.frames import FrameSchema, check_frame
from rlhf_pipeline.core.parquet import WRITE_OPTIONS


class Parquet:
    """One row group per written frame. The file's metadata names the schema under `schema`, even
    without rows.
    """

    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        arrow = schema.arrow_schema().with_metadata({"schema": schema.name})
        n = 0
        with pq.ParquetWriter(file, arrow, **WRITE_OPTIONS) as writer:
            for batch in batches:
                if not batch.empty:
                    writer.write_table(
                        pa.Table.from_pandas(
                            check_frame(batch, schema),
                            schema=schema.arrow_schema(),
                            preserve_index=False,
                        )
                    )
                n += len(batch)
        return n
