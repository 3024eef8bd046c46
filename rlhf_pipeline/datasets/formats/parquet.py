"""Parquet with the schema's types, compressed by zstd."""

from collections.abc import Iterable
from typing import IO, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.frames import FrameSchema, check_frame
from rlhf_pipeline.parquet import READ_OPTIONS, WRITE_OPTIONS

# Arrow's default conversion turns integers with missing values into floats.
WHOLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


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

    def read(self, file: IO[bytes], schema: FrameSchema) -> pd.DataFrame:
        try:
            rows = pq.read_table(file, **READ_OPTIONS).to_pandas(types_mapper=WHOLE.get)
        except Exception as cause:  # a damaged file raises any of the decoder's errors
            raise FrameError(
                f"{schema.name}: the file is damaged or not a Parquet file ({cause}). Write or "
                "copy it again."
            ) from cause
        return check_frame(rows, schema)
