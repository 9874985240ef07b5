"""A use of each package: a function that computes something, and returns it as a value that can be compared.

Each imports its package itself, in the interpreter that calls it. The names are those of distributions,
with "_" for "-".
"""

import hashlib
import io
import os
import random
import tempfile


def _digest(data):
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def _text(n=2000):
    return " ".join(str(random.Random(5).random()) for _ in range(n)).encode()


# ---- arrays and science ----


def numpy():
    import numpy as np

    a = np.random.default_rng(1).random((60, 60))
    return round(float(np.linalg.eigvals(a).real.sum()), 6), float(np.fft.fft(a[0]).real[0].round(6))


def scipy():
    from scipy import optimize, sparse, stats

    found = optimize.minimize(lambda x: (x[0] - 3) ** 2 + x[1] ** 2, [0.0, 1.0]).x.round(3).tolist()
    return found, sparse.eye(9).tocsr().sum(), round(float(stats.norm.cdf(1.0)), 9)


def pandas():
    import pandas as pd

    table = pd.DataFrame({"a": [1, 2, 3] * 30, "b": range(90), "c": ["x", "y", "z"] * 30})
    text = table.to_csv()
    again = pd.read_csv(io.StringIO(text), index_col=0)
    return again.groupby("c").b.sum().to_dict(), again.merge(table, on="b").shape


def scikit_learn():
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    x, y = make_classification(200, random_state=1)
    return round(float(RandomForestClassifier(20, random_state=1).fit(x, y).score(x, y)), 6)


def statsmodels():
    import numpy as np
    import statsmodels.api as sm

    x = np.linspace(0, 1, 50)
    return sm.OLS(3 * x + 1, sm.add_constant(x)).fit().params.round(6).tolist()


def scikit_image():
    import numpy as np
    from skimage import filters, measure

    image = np.zeros((40, 40))
    image[5:15, 5:15] = image[25:30, 20:35] = 1
    return int(measure.label(image > 0).max()), round(float(filters.gaussian(image, 2).max()), 6)


def pywavelets():
    import pywt

    return [round(float(x), 6) for x in pywt.dwt([1.0, 2.0, 5.0, 3.0], "db2")[0]]


def bottleneck():
    import bottleneck as bn
    import numpy as np

    return bn.move_mean(np.arange(9.0), 3)[2:].tolist()


def numexpr():
    import numexpr as ne
    import numpy as np

    a = np.arange(100_000.0)
    return float(ne.evaluate("sum(2 * a + sin(a) ** 2 + cos(a) ** 2)", {"a": a}).round(3))


def astropy():
    from astropy import units
    from astropy.coordinates import SkyCoord
    from astropy.time import Time

    there = SkyCoord(10 * units.deg, 20 * units.deg).galactic
    return round(there.l.deg, 6), Time("2020-01-01").jd, (3 * units.km).to(units.m).value


def sympy():
    import sympy as sp

    x = sp.Symbol("x")
    return str(sp.integrate(sp.exp(-x) * sp.sin(x), x)), str(sp.factor(x**4 - 1))


def networkx():
    import networkx as nx

    graph = nx.karate_club_graph()
    return nx.shortest_path_length(graph, 0, 33), round(sum(nx.pagerank(graph).values()), 6)


def lightgbm():
    import lightgbm as lgb
    import numpy as np

    x = np.random.default_rng(1).random((200, 5))
    model = lgb.LGBMRegressor(n_estimators=10, num_threads=1, verbose=-1).fit(x, x[:, 0])
    return round(float(model.predict(x).sum()), 4)


def shapely():
    from shapely.geometry import Point
    from shapely.ops import unary_union

    return round(unary_union([Point(n, 0).buffer(1) for n in range(5)]).area, 6)


def pyproj():
    from pyproj import Transformer

    return [round(x, 3) for x in Transformer.from_crs(4326, 3857, always_xy=True).transform(13.0, 52.0)]


def rasterio():
    import numpy as np
    from rasterio.io import MemoryFile

    with MemoryFile() as memory:
        with memory.open(driver="GTiff", width=8, height=8, count=1, dtype="uint8") as out:
            out.write(np.arange(64, dtype="uint8").reshape(1, 8, 8))
        with memory.open() as back:
            return int(back.read(1).sum())


def contourpy():
    import contourpy
    import numpy as np

    x = np.linspace(-1, 1, 20)
    return len(contourpy.contour_generator(z=np.add.outer(x**2, x**2)).lines(0.5)[0])


def kiwisolver():
    import kiwisolver

    x, solver = kiwisolver.Variable("x"), kiwisolver.Solver()
    solver.addConstraint(2 * x == 6)
    solver.updateVariables()
    return x.value()


# ---- pictures ----


def matplotlib():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 3, 2], label="a line")
    figure.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    page = io.BytesIO()
    figure.savefig(page, format="pdf", metadata={"CreationDate": None})
    return _digest(out.getvalue()), page.getvalue()[:5], page.tell() > 1000


def pillow():
    from PIL import Image, ImageDraw, ImageFilter

    image = Image.new("RGB", (90, 60), "white")
    ImageDraw.Draw(image).ellipse((10, 10, 60, 50), fill="red")
    out = io.BytesIO()
    image.filter(ImageFilter.GaussianBlur(2)).resize((45, 30)).save(out, "JPEG")
    return _digest(Image.open(out).tobytes())


def opencv_python_headless():
    import cv2
    import numpy as np

    image = np.zeros((60, 60, 3), np.uint8)
    cv2.circle(image, (30, 30), 20, (255, 0, 0), -1)
    return int(cv2.Canny(image, 50, 150).sum()), _digest(cv2.imencode(".png", cv2.GaussianBlur(image, (5, 5), 0))[1])


# ---- tables and stores ----


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
    return _digest(nc.Blosc().decode(nc.Blosc().encode(a))), _digest(nc.Zstd().decode(nc.Zstd().encode(a)))


def blosc2():
    import blosc2 as b2
    import numpy as np

    return _digest(b2.decompress(b2.compress(np.arange(10_000).tobytes()))), int(b2.asarray(np.arange(100))[:].sum())


# ---- formats, text and validation ----


def lxml():
    from lxml import etree

    page = etree.fromstring("<a><b n='1'>x</b><b n='2'>y</b></a>")
    sheet = "<xsl:stylesheet version='1.0' xmlns:xsl='http://www.w3.org/1999/XSL/Transform'><xsl:template match='/'>"
    sheet += "<r><xsl:value-of select='count(//b)'/></r></xsl:template></xsl:stylesheet>"
    return page.xpath("//b[@n='2']/text()"), str(etree.XSLT(etree.fromstring(sheet))(page))


def orjson():
    import orjson as oj

    return oj.loads(oj.dumps({"a": [1, 2.5, None], "b": {"c": "é"}}))


def ujson():
    import ujson as uj

    return uj.loads(uj.dumps({"a": [1, 2.5, None], "b": {"c": "é"}}))


def simplejson():
    import simplejson as sj

    return sj.loads(sj.dumps({"a": [1, 2.5, None], "b": {"c": "é"}}))


def jiter():
    import jiter as ji

    return ji.from_json(b'{"a": [1, 2.5, null]}')


def msgpack():
    import msgpack as mp

    return mp.unpackb(mp.packb({"a": [1, 2.5, b"x"] * 50}))


def ormsgpack():
    import ormsgpack as om

    return om.unpackb(om.packb({"a": [1, 2.5, b"x"] * 50}))


def pyyaml():
    import yaml

    return yaml.load(yaml.dump({"a": [1, 2.5, None]}, Dumper=yaml.CSafeDumper), Loader=yaml.CSafeLoader)


def protobuf():
    from google.protobuf import struct_pb2

    message = struct_pb2.Struct()
    message.update({"a": 1.5, "b": ["x", True]})
    again = struct_pb2.Struct()
    again.ParseFromString(message.SerializeToString(deterministic=True))
    return again["a"], len(again["b"])


def pydantic():
    from pydantic import BaseModel, ValidationError

    class Point(BaseModel):
        x: int
        y: list[float] = []

    Point.model_rebuild()
    try:
        Point(x="no")
    except ValidationError as error:
        return Point.model_validate_json('{"x": 3, "y": ["1.5"]}').model_dump(), error.error_count()


def rpds_py():
    from rpds import HashTrieMap, List

    return HashTrieMap({"a": 1}).insert("b", 2)["b"], list(List([1, 2]).push_front(0))


def markupsafe():
    import markupsafe as ms

    return str(ms.escape("<a & 'b'>"))


def regex():
    import regex as rx

    return rx.findall(r"\p{Lu}\w+", "Über den Wolken, Élan"), bool(rx.fullmatch(r"(?:cats){e<=1}", "cat"))


def rapidfuzz():
    from rapidfuzz import fuzz, process

    return round(fuzz.ratio("this is a test", "this is a test!"), 4), process.extractOne("ab", ["abc", "xyz"])[0]


def tokenizers():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        ["ab ab abc", "abc bcd"] * 20, trainers.BpeTrainer(vocab_size=20, special_tokens=["?"])
    )
    return tokenizer.encode("abc ab").tokens


# ---- numbers, bytes and compression ----


def gmpy2():
    import gmpy2 as gm

    return str(gm.mpz(3) ** 200), str(gm.sqrt(gm.mpfr(2)))


def bitarray():
    from bitarray import bitarray as bits

    return (bits("1101") * 9).count(), (bits("1100") ^ bits("1010")).to01()


def zstandard():
    import zstandard as zs

    return _digest(zs.ZstdDecompressor().decompress(zs.ZstdCompressor().compress(_text())))


def lz4():
    from lz4 import frame

    return _digest(frame.decompress(frame.compress(_text())))


def brotli():
    import brotli as br

    return _digest(br.decompress(br.compress(_text())))


# ---- cryptography and the system ----


def cryptography():
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    key.public_key().verify(key.sign(b"x", ec.ECDSA(hashes.SHA256())), b"x", ec.ECDSA(hashes.SHA256()))
    fernet = Fernet(Fernet.generate_key())
    return fernet.decrypt(fernet.encrypt(b"secret"))


def pynacl():
    from nacl.secret import SecretBox

    box = SecretBox(b"k" * 32)
    return box.decrypt(box.encrypt(b"secret"))


def bcrypt():
    import bcrypt as bc

    return bc.checkpw(b"secret", bc.hashpw(b"secret", bc.gensalt(4)))


def cffi():
    import cffi as cf

    ffi = cf.FFI()
    ffi.cdef("double sqrt(double); void qsort(void *, size_t, size_t, int (*)(const void *, const void *));")
    c, numbers = ffi.dlopen("libm.so.6"), ffi.new("int[]", [3, 1, 2])
    libc = ffi.dlopen(None)
    compare = ffi.callback(
        "int(const void *, const void *)", lambda a, b: ffi.cast("int *", a)[0] - ffi.cast("int *", b)[0]
    )
    libc.qsort(numbers, 3, 4, compare)
    return c.sqrt(16.0), list(numbers)


def psutil():
    import psutil as ps

    return ps.Process().pid == os.getpid(), ps.virtual_memory().total > 0, len(ps.pids()) > 0


def pyzmq():
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as a, context.socket(zmq.PAIR) as b:
        a.bind("inproc://x")
        b.connect("inproc://x")
        b.send(b"hello")
        return a.recv()


def tornado():
    import asyncio

    from tornado.httputil import HTTPHeaders, parse_qs_bytes
    from tornado.websocket import _websocket_mask

    async def later():
        return list(HTTPHeaders.parse("A: 1\r\nB: 2\r\n").get_all())

    return asyncio.run(later()), parse_qs_bytes("a=1"), _websocket_mask(b"abcd", b"hello")


def aiohttp():
    import asyncio

    from aiohttp import ClientSession, web

    async def run():
        async def answer(request):
            return web.json_response({"path": request.path})

        app = web.Application()
        app.router.add_get("/x", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/x") as response:
            found = await response.json()
        await runner.cleanup()
        return found

    return asyncio.run(run())


def grpcio():
    import grpc

    with grpc.insecure_channel("127.0.0.1:1") as channel:
        try:
            channel.unary_unary("/a/b")(b"x", timeout=2)
        except grpc.RpcError as error:
            return error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def httptools():
    import httptools as ht

    class Seen:
        def __init__(self):
            self.urls = []

        def on_url(self, url):
            self.urls.append(url)

    seen = Seen()
    ht.HttpRequestParser(seen).feed_data(b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    return seen.urls, ht.parse_url(b"http://x/a?b=1").query


def uvloop():
    import asyncio

    import uvloop as uv

    async def run():
        await asyncio.sleep(0.001)
        return 42

    with asyncio.Runner(loop_factory=uv.new_event_loop) as runner:
        return runner.run(run())
