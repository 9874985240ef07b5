"""Uses of cryptography, the network and the system."""

import os
import tempfile


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


def argon2_cffi():
    import argon2

    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    return hasher.verify(hasher.hash("secret"), "secret")


def pycryptodome():
    from Crypto.Cipher import AES
    from Crypto.Hash import SHA3_256

    return AES.new(b"k" * 16, AES.MODE_GCM, nonce=b"n" * 12).encrypt(b"hello"), SHA3_256.new(b"x").hexdigest()


def hiredis():
    import hiredis as redis

    reader = redis.Reader()
    reader.feed(b"*2\r\n$3\r\nfoo\r\n:7\r\n")
    return reader.gets(), redis.pack_command(("SET", "a", 1))


def websockets():
    import asyncio

    from websockets import speedups
    from websockets.asyncio.client import connect
    from websockets.asyncio.server import serve

    async def answer(connection):
        async for message in connection:
            await connection.send(message[::-1])

    async def run():
        async with serve(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}") as connection:
                await connection.send("hello")
                return await connection.recv()

    return asyncio.run(run()), speedups.apply_mask(b"abcd", b"1234")


def asyncpg():
    import asyncio

    import asyncpg as pg

    async def run():
        try:
            await pg.connect("postgresql://127.0.0.1:1/x", timeout=5)
        except OSError as error:
            return type(error).__name__

    return asyncio.run(run()), pg.Range(1, 5).upper


def psycopg2_binary():
    import psycopg2
    from psycopg2.extensions import adapt

    try:
        psycopg2.connect("host=127.0.0.1 port=1")
    except psycopg2.OperationalError as error:
        return "refused" in str(error), adapt(b"x").getquoted(), str(adapt([1, 2.5]))


def psycopg_binary():
    import psycopg

    try:
        psycopg.connect("host=127.0.0.1 port=1")
    except psycopg.OperationalError as error:
        return "refused" in str(error), psycopg.pq.__impl__, psycopg.sql.Literal(3).as_string(None)


def pycurl():
    import io

    import pycurl as curl

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"hello")
        file.flush()
        found = io.BytesIO()
        handle = curl.Curl()
        handle.setopt(handle.URL, f"file://{file.name}")
        handle.setopt(handle.WRITEDATA, found)
        handle.perform()
        handle.close()
    return found.getvalue()


def gevent():
    import gevent as ge

    return [job.get() for job in [ge.spawn(lambda n: (ge.sleep(0.001), n * n)[1], n) for n in range(4)]]


def coverage():
    import coverage as cov

    spaces = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.py")
        with open(path, "w") as file:
            file.write("a = 1\nif a > 1:\n    a = 3\n")
        measured = cov.Coverage(data_file=None, include=[path], config_file=False)
        with measured.collect():
            exec(compile("a = 1\nif a > 1:\n    a = 3\n", path, "exec"), spaces)
        return measured.analysis2(path)[3]


def line_profiler():
    import line_profiler as lp

    def work():
        return sum(range(100))

    profile = lp.LineProfiler(work)
    return profile.runcall(work), len(profile.get_stats().timings)
