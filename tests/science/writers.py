"""Tasks of two workers that write to one file or store at the same time, and counts of what is there afterwards.

Each writer returns how many records it has committed; what the library refused by an exception is not committed. A
package is right if as many are there as were committed, and wrong if some are lost or the file cannot be read.
"""

import os
import sqlite3 as standard_sqlite3
import tempfile
import time

TASKS, RECORDS = 4, 15


def h5py(path, n):
    """Append to the file, which is opened for each record."""
    import h5py as h5

    with h5.File(path, "a") as file:
        file[f"{n[0]}-{n[1]}"] = n[1]


def h5py_count(path):
    import h5py as h5

    with h5.File(path, "r") as file:
        return len(file)


def netCDF4(path, n):
    import netCDF4 as nc

    with nc.Dataset(path, "a") as file:
        file.createGroup(f"g{n[0]}_{n[1]}")


def netCDF4_count(path):
    import netCDF4 as nc

    with nc.Dataset(path) as file:
        return len(file.groups)


def netCDF4_make(path):
    import netCDF4 as nc

    nc.Dataset(path, "w").close()


def tables(path, n):
    import tables as tb

    with tb.open_file(path, "a") as file:
        file.create_array("/", f"a{n[0]}_{n[1]}", [n[1]])


def tables_count(path):
    import tables as tb

    with tb.open_file(path) as file:
        return len(file.list_nodes("/"))


def zarr(path, n):
    """Each writes chunks of its own, as zarr's documentation allows."""
    import zarr as z

    z.open_array(path, mode="r+")[n[0] * RECORDS + n[1]] = 1


def zarr_make(path):
    import zarr as z

    z.open_array(path, mode="w", shape=(TASKS * RECORDS,), chunks=(1,), dtype="i4")


def zarr_count(path):
    import zarr as z

    return int(z.open_array(path, mode="r")[:].sum())


def pyarrow(path, n):
    """A data set: each writes files of its own."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    options = {"basename_template": f"{n[0]}-{n[1]}-{{i}}.parquet", "existing_data_behavior": "overwrite_or_ignore"}
    ds.write_dataset(pa.table({"n": [n[0]], "k": [n[1]]}), path, format="parquet", **options)


def pyarrow_count(path):
    import pyarrow.dataset as ds

    return ds.dataset(path, format="parquet").count_rows()


def sqlite3(path, n):
    connection = standard_sqlite3.connect(path, timeout=60)
    try:
        with connection:
            connection.execute("insert into t values (?, ?)", n)
    finally:
        connection.close()


def sqlite3_make(path):
    connection = standard_sqlite3.connect(path)
    connection.execute("create table t(n int, k int)")
    connection.close()


def sqlite3_count(path):
    connection = standard_sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    found = connection.execute("select count(*) from t").fetchone()[0]
    connection.close()
    return found


def apsw(path, n):
    import apsw as db

    connection = db.Connection(path)
    connection.set_busy_timeout(60_000)
    connection.execute("insert into t values (?, ?)", n)
    connection.close()


def duckdb(path, n):
    import duckdb as db

    with db.connect(path) as connection:
        connection.execute("insert into t values (?, ?)", [*n])
        time.sleep(0.002)


def duckdb_make(path):
    import duckdb as db

    with db.connect(path) as connection:
        connection.execute("create table t(n int, k int)")


def duckdb_count(path):
    import duckdb as db

    with db.connect(path) as connection:
        return connection.execute("select count(*) from t").fetchone()[0]


def lmdb(path, n):
    import lmdb as db

    with db.open(path, map_size=10 << 20) as store, store.begin(write=True) as change:
        change.put(b"n", str(int(change.get(b"n", b"0")) + 1).encode())


def lmdb_count(path):
    import lmdb as db

    with db.open(path, map_size=10 << 20) as store, store.begin() as look:
        return int(look.get(b"n", b"0"))


def rocksdict(path, n):
    import rocksdict as rocks

    store = rocks.Rdict(path)
    try:
        store[f"{n[0]}-{n[1]}"] = 1
    finally:
        store.close()


def rocksdict_count(path):
    import rocksdict as rocks

    store = rocks.Rdict(path)
    try:
        return sum(1 for _ in store.keys())
    finally:
        store.close()


# name -> its writer, what makes the file, what counts the records
ALL = {
    "h5py": (h5py, None, h5py_count),
    "netCDF4": (netCDF4, netCDF4_make, netCDF4_count),
    "tables": (tables, None, tables_count),
    "zarr": (zarr, zarr_make, zarr_count),
    "pyarrow": (pyarrow, None, pyarrow_count),
    "sqlite3": (sqlite3, sqlite3_make, sqlite3_count),
    "apsw": (apsw, sqlite3_make, sqlite3_count),
    "duckdb": (duckdb, duckdb_make, duckdb_count),
    "lmdb": (lmdb, None, lmdb_count),
    "rocksdict": (rocksdict, None, rocksdict_count),
}
STANDARD = ("sqlite3",)


def write(name, path, n):
    """Return how many records were committed, and the first refusal, or None."""
    committed, refusal = 0, None
    for k in range(RECORDS):
        for _ in range(100):
            try:
                ALL[name][0](path, (n, k))
                committed += 1
                break
            except Exception as error:
                refusal = refusal or f"{type(error).__name__}: {error}"[:150]
                time.sleep(0.01)
    return committed, refusal


def count(name, path):
    return ALL[name][2](path)


def run(name, pool):
    """Let the workers of a pool write. Return (committed, there) or what went wrong, and a refusal that was seen."""
    import writers  # by name, for the workers

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        if ALL[name][1]:
            ALL[name][1](path)
        done = pool.starmap(writers.write, [(name, path, n) for n in range(TASKS)], 1)
        try:
            there = count(name, path)
        except Exception as error:
            there = f"{type(error).__name__}: {error}"[:150]
        return sum(n for n, _ in done), there, next((refusal for _, refusal in done if refusal), None)
