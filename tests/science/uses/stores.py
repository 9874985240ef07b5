"""Uses of tables, databases and files of data."""

import io
import os
import tempfile

from uses.common import digest


def polars():
    import polars as pl

    table = pl.DataFrame({"a": [1, 2, 1, 2], "b": [1.0, 2.0, 3.0, 4.0]})
    out = io.BytesIO()
    table.write_parquet(out)
    doubled = pl.read_parquet(out.getvalue()).with_columns(
        c=pl.col("b").map_elements(lambda x: 2 * x, return_dtype=pl.Float64)
    )
    return doubled.group_by("a").agg(pl.col("c").sum()).sort("a").rows()


def sqlalchemy():
    import sqlalchemy as sa
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

    class Base(DeclarativeBase):
        pass

    class Row(Base):
        __tablename__ = "rows"
        id: Mapped[int] = mapped_column(primary_key=True)

    Row.__annotations__ = {"id": Mapped[int]}
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Row(id=n) for n in range(20)])
        return session.scalar(sa.select(sa.func.sum(Row.id)))


def greenlet():
    import asyncio

    from greenlet import getcurrent
    from greenlet import greenlet as make
    from sqlalchemy.util.concurrency import await_only, greenlet_spawn

    async def answer():
        await asyncio.sleep(0)
        return 42

    steps = []
    main = getcurrent()
    other = make(lambda: [steps.append(main.switch(n)) for n in range(50)])
    first = other.switch()
    while not other.dead:
        first = other.switch(first)
    return len(steps), asyncio.run(greenlet_spawn(lambda: await_only(answer())))


def h5py():
    import h5py as h5
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(40):
            with h5.File(os.path.join(folder, "a.h5"), "w") as out:
                out.create_dataset("x", data=np.arange(5000.0), compression="gzip")
            with h5.File(os.path.join(folder, "a.h5")) as back:
                total = float(back["x"][:].sum())
    return total


def netCDF4():
    import netCDF4 as nc
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(40):
            with nc.Dataset(os.path.join(folder, "a.nc"), "w") as out:
                out.createDimension("x", 500)
                out.createVariable("v", "f8", ("x",), zlib=True)[:] = np.arange(500.0)
            with nc.Dataset(os.path.join(folder, "a.nc")) as back:
                total = float(back["v"][:].sum())
    return total


def tables():
    import numpy as np
    import tables as tb

    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for library in ("zlib", "lzo", "blosc", "blosc2") * 5:
            filters = tb.Filters(complevel=5, complib=library if tb.which_lib_version(library) else "zlib")
            with tb.open_file(os.path.join(folder, "a.h5"), "w", filters=filters) as out:
                out.create_carray("/", "v", obj=np.arange(50_000.0))
                rows = out.create_table("/", "t", {"x": tb.Float64Col(), "n": tb.Int64Col()})
                rows.append([(n / 7, n) for n in range(2000)])
            with tb.open_file(os.path.join(folder, "a.h5")) as back:
                total += float(back.root.v[:].sum()) + sum(row["x"] for row in back.root.t.where("n > 1500"))
    return round(total, 6)


def pyarrow():
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pa.table({"a": list(range(100)), "b": [str(n) for n in range(100)]})
    out = io.BytesIO()
    pq.write_table(table, out)
    return pc.sum(pq.read_table(io.BytesIO(out.getvalue()))["a"]).as_py()


def duckdb():
    import duckdb as db

    return db.connect().sql("select sum(i), count(distinct i % 7) from range(100000) t(i)").fetchall()


def fastparquet():
    import fastparquet as fp
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "a.parquet")
        fp.write(file, pd.DataFrame({"a": range(100)}))
        return int(fp.ParquetFile(file).to_pandas().a.sum())


def numcodecs():
    import numcodecs as nc
    import numpy as np

    a = np.arange(10_000)
    return digest(nc.Blosc().decode(nc.Blosc().encode(a))), digest(nc.Zstd().decode(nc.Zstd().encode(a)))


def blosc2():
    import blosc2 as b2
    import numpy as np

    return digest(b2.decompress(b2.compress(np.arange(10_000).tobytes()))), int(b2.asarray(np.arange(100))[:].sum())


def safetensors():
    import numpy as np
    from safetensors.numpy import load, save

    return load(save({"a": np.arange(6.0).reshape(2, 3)}))["a"].tolist()


def lmdb():
    import lmdb as db

    with tempfile.TemporaryDirectory() as folder, db.open(folder) as store:
        with store.begin(write=True) as change:
            for i in range(100):
                change.put(b"%03d" % i, b"x" * i)
        with store.begin() as look:
            return look.stat()["entries"], look.get(b"007")


def rocksdict():
    import rocksdict as rocks

    with tempfile.TemporaryDirectory() as folder:
        store = rocks.Rdict(folder)
        store["a"], store[b"b"] = 1, [2, 3]
        found = store["a"], store[b"b"]
        store.close()
    return found


def pysam():
    import pysam as sam

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.bam")
        with sam.AlignmentFile(path, "wb", header={"HD": {"VN": "1.6"}, "SQ": [{"LN": 99, "SN": "c"}]}) as file:
            read = sam.AlignedSegment(file.header)
            read.query_name, read.query_sequence, read.reference_id, read.reference_start = "r", "ACGT", 0, 5
            read.cigarstring = "4M"
            file.write(read)
        with sam.AlignmentFile(path, check_sq=False) as file:
            return [(read.query_name, read.reference_start, read.cigarstring) for read in file]


def fastavro():
    import fastavro as fa

    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    file = io.BytesIO()
    fa.writer(file, schema, [{"a": i, "b": str(i)} for i in range(20)])
    file.seek(0)
    return sum(record["a"] for record in fa.reader(file))


def pymongo():
    import bson

    return bson.has_c(), bson.decode(bson.encode({"a": [1, 2.5, "x"], "b": {"c": b"y"}}))
