"""What is known of packages with extension modules in interpreters: those that are copied by default, and those that
crash and are therefore refused.

Fresh interpreters get this module as code, so it imports nothing.
"""

# Packages whose own tests were run in interpreters: import name -> their version. Where copies are not supported, they
# would crash, and are refused.
TESTED = {
    "numpy": "2.5.5",
    "scipy": "1.18.1",
    "pandas": "3.1.1",
    "sklearn": "1.9.1",
}

# Packages that are copied by default: those, and those that tests/science/packages.py has tried, with what they need.
PACKAGES = {
    **TESTED,
    "_argon2_cffi_bindings": "26.2.0",
    "_cffi_backend": "2.1.1",
    "_cvxcore": "1.9.3",
    "_polars_runtime_32": "2.1.0",
    "_skimage2": "0.27.0rc1",
    "aiohttp": "3.14.5",
    "astropy": "8.0.2",
    "av": "19.0.2",
    "bcrypt": "5.0.0",
    "Bio": "1.88",
    "bitarray": "3.12.3",
    "blake3": "1.0.11",
    "blis": "1.3.4",
    "blosc2": "4.14.1",
    "bottleneck": "1.6.0",
    "bson": "4.20.1",
    "cartopy": "0.26.0",
    "cffi": "2.1.1",
    "cftime": "1.6.6.1",
    "charset_normalizer": "3.5.3",
    "ciso8601": "2.4.1",
    "clarabel": "0.11.1",
    "contourpy": "1.4.0",
    "coverage": "7.17.4",
    "cramjam": "2.14.0",
    "cryptography": "50.0.2",
    "cv2": "5.0.0.93",
    "cymem": "2.0.16",
    "Cython": "3.3.1",
    "erfa": "2.0.1.5",
    "faiss": "1.15.1",
    "fastavro": "1.13.1",
    "fastparquet": "2026.9.0",
    "flint": "0.9.0",
    "fontTools": "4.68.0",
    "frozenlist": "1.8.0",
    "gmpy2": "2.3.2",
    "google": "7.36.2",
    "google_crc32c": "1.9.0",
    "greenlet": "3.5.6",
    "grpc": "1.85.1",
    "h3": "4.5.0",
    "h5py": "3.16.0",
    "hdbscan": "0.8.44",
    "healpy": "1.20.1",
    "highspy": "1.16.0",
    "hiredis": "3.5.0",
    "httptools": "0.9.0",
    "igraph": "1.0.0",
    "imagecodecs": "2026.10.10",
    "isal": "1.9.1",
    "jellyfish": "1.3.0",
    "jiter": "0.19.0",
    "kiwisolver": "1.5.1",
    "Levenshtein": "0.27.5",
    "line_profiler": "5.1.0",
    "lxml": "6.1.3",
    "lz4": "4.4.5",
    "matplotlib": "3.11.2",
    "mmh3": "5.3.1",
    "msgpack": "1.2.4",
    "msgspec": "0.22.0",
    "murmurhash": "1.0.16",
    "nacl": "1.6.2",
    "ndindex": "1.10.1",
    "netCDF4": "1.7.5.1.post1",
    "nh3": "0.3.8",
    "numcodecs": "0.17.1",
    "numexpr": "2.14.2",
    "onnxruntime": "1.32.0",
    "orjson": "3.13.0",
    "ormsgpack": "1.13.1",
    "osqp": "1.1.3",
    "pendulum": "3.3.0",
    "PIL": "13.0.0",
    "polars": "2.1.0",
    "preshed": "3.0.15",
    "propcache": "0.5.4",
    "psutil": "7.2.2",
    "psycopg2": "2.9.13",
    "psycopg_binary": "3.3.9",
    "pyarrow": "26.0.1",
    "pycurl": "7.49.0",
    "pydantic": "2.14.3",
    "pydantic_core": "2.50.4",
    "pyfftw": "0.15.1",
    "pymongo": "4.20.1",
    "pyogrio": "0.13.0",
    "pyproj": "3.8.0",
    "pysam": "0.24.1",
    "python_calamine": "0.9.1",
    "pywt": "1.10.0",
    "qdldl": "0.1.9.post1",
    "rapidfuzz": "3.14.6",
    "rasterio": "1.5.2",
    "rdkit": "2026.9.1",
    "regex": "2026.11.15",
    "rpds": "2026.9.1",
    "safetensors": "0.8.0",
    "scs": "3.3.1",
    "sentencepiece": "0.2.3",
    "shapely": "2.2.0",
    "simplejson": "4.3.0",
    "skimage": "0.26.0",
    "spacy": "3.8.18",
    "sparsediffpy": "0.6.1",
    "sqlalchemy": "2.1.9",
    "srsly": "2.5.6",
    "statsmodels": "0.15.0",
    "tables": "3.11.1",
    "thinc": "8.3.14",
    "tiktoken": "0.14.0",
    "tokenizers": "0.23.3",
    "tomli": "2.5.0",
    "tornado": "6.6.1",
    "ujson": "6.1.0",
    "uvloop": "0.23.0",
    "websockets": "17.4",
    "yaml": "6.0.3",
    "yarl": "1.25.1",
    "zlib_ng": "1.1.0",
    "zmq": "27.3.0",
    "zope": "8.7",
    "zstandard": "0.25.0",
}

# Beginnings of the names of libraries of which each interpreter has its own copy. Their state is one per process, and
# each copy of the modules that need them guards it by another lock (HDF5, netCDF, FFTW), or it refers to Python objects
# (Arrow, Boost's Python) or to functions of a copy: those of Faiss and RDKit, and handlers of logs, errors and files
# (FFmpeg's libraries, GDAL, Little CMS, libtiff).
OWN_LIBRARIES = (
    "libhdf5",
    "libnetcdf",
    "libarrow",
    "libparquet",
    "libfaiss",
    "libfftw3",
    "libboost_python",
    "libRDKit",
    "libavcodec",
    "libavdevice",
    "libavfilter",
    "libavformat",
    "libavutil",
    "libswresample",
    "libswscale",
    "libgdal",
    "liblcms2",
    "libtiff",
)

# Arrow's allocator jemalloc starts a thread that never ends, unless its settings, which are a text in the library, say
# otherwise. What stands in place of that is as long, and has no effect: it is there before, too.
ARROW = "libarrow.so"
ARROW_SETTINGS = {b"background_thread:true": b"oversize_threshold:000"}

# Packages of Rust whose threads sleep for good when their interpreter has ended. They use nothing of other copies, and
# have thread-local variables with destructors, so the C library keeps their own copy. Threads of packages that are not
# in this list keep all copies of their interpreter, and its memory.
SLEEPERS = ("_polars_runtime_32", "tokenizers")

# Modules that are refused in every interpreter, also if the option `extensions` names them: import name -> the version
# that was tried ("": none), and what happens. PyTables is refused by its first extension module, since `tables` may
# well be a module of the user's own.
REFUSED = {
    "torch": ("", "its import crashes the program"),
    "numba": ("0.68.1", "several interpreters share its LLVM library, which aborts the program"),
    "llvmlite": ("0.50.0", "several interpreters share its LLVM library, which aborts the program"),
    "jax": ("0.12.0.1", "several interpreters share its XLA library, which aborts the program"),
    "jaxlib": ("0.12.0.1", "several interpreters share its XLA library, which aborts the program"),
}

# Modules that are refused unless the option `extensions` names them, since files could be damaged: import name -> why.
# Their library keeps a list of the files that it has open, and each copy has another one.
_LOCKS = "its locks of files (fcntl) do not conflict between interpreters of one process"
AT_RISK = {
    "duckdb": (_LOCKS, "committed rows are lost, or the file is destroyed"),
    "_duckdb": (_LOCKS, "committed rows are lost, or the file is destroyed"),
    "rocksdict": (_LOCKS, "the database cannot be opened any more"),
    "lmdb": (_LOCKS, "updates are lost, or the program crashes"),
    "apsw": (_LOCKS, "the database may be damaged"),
    "pysqlite3": (_LOCKS, "the database may be damaged"),
}


def why_refused(name: str) -> str:
    """Return the sentence that says why a module is refused and what to do."""
    package = name.partition(".")[0]
    if name in AT_RISK:
        reason, risk = AT_RISK[name]
        return (
            f"{package} is refused in workers of kind 'interp', because {reason}, so if two workers, or one and the "
            f"main program, open the same file, {risk}: use kind='process' for it, or extensions=[{package!r}] at "
            "your own risk if each file is open in one of them only"
        )
    _, reason = REFUSED[name]
    return (
        f"{package} does not work in workers of kind 'interp', because {reason}: use kind='process' or 'thread' for it"
    )
