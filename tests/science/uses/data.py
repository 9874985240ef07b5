"""Uses of numbers, bytes, hashes and compression."""

from uses.common import digest, text


def gmpy2():
    import gmpy2 as gm

    return str(gm.mpz(3) ** 200), str(gm.sqrt(gm.mpfr(2)))


def bitarray():
    from bitarray import bitarray as bits

    return (bits("1101") * 9).count(), (bits("1100") ^ bits("1010")).to01()


def zstandard():
    import zstandard as zs

    return digest(zs.ZstdDecompressor().decompress(zs.ZstdCompressor().compress(text())))


def lz4():
    from lz4 import frame

    return digest(frame.decompress(frame.compress(text())))


def brotli():
    import brotli as br

    return digest(br.decompress(br.compress(text())))


def xxhash():
    import xxhash as xx

    return xx.xxh64_hexdigest(text()), xx.xxh3_128_hexdigest(b"x")


def mmh3():
    import mmh3 as mm

    return mm.hash("x"), mm.hash128(text())


def google_crc32c():
    import google_crc32c as crc

    return crc.implementation, crc.value(text())


def crc32c():
    import crc32c as crc

    return crc.crc32c(text())


def blake3():
    import blake3 as bl

    return bl.blake3(text()).hexdigest()


def pybase64():
    import pybase64 as b64

    return b64.b64decode(b64.b64encode(text())) == text()


def isal():
    from isal import isal_zlib

    return isal_zlib.decompress(isal_zlib.compress(text())) == text()


def zlib_ng():
    from zlib_ng import zlib_ng as zlib

    return zlib.decompress(zlib.compress(text())) == text(), zlib.crc32(text())


def python_snappy():
    import snappy

    return snappy.decompress(snappy.compress(text())) == text()
