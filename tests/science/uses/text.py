"""Uses of formats, text and validation."""


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


def charset_normalizer():
    import charset_normalizer as cn

    words = "Der Müller hört die Bäume über dem Fluß rauschen, früh am Morgen. "
    found = cn.from_bytes(words.encode("cp1252") * 9).best()
    return found is not None and "Bäume" in str(found)


def wrapt():
    import wrapt as wr

    @wr.decorator
    def twice(wrapped, instance, args, kwargs):
        return 2 * wrapped(*args, **kwargs)

    return twice(lambda x: x + 1)(4), len(wr.ObjectProxy([1, 2]))


def multidict():
    import multidict as md

    found = md.CIMultiDict([("a", 1), ("A", 2), ("b", 3)])
    return found.getall("a"), sorted(found.keys())


def yarl():
    import yarl as ya

    return str(ya.URL("http://example.com/a b?q=1") / "c" % {"r": "ü"})


def tiktoken():
    import tiktoken as tt

    ranks = {bytes([i]): i for i in range(256)} | {b"th": 256, b"the": 257, b"in": 258}
    encoding = tt.Encoding("x", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={})
    return encoding.encode("the thing in there"), encoding.decode([257, 32, 256, 258])


def sentencepiece():
    import io

    import sentencepiece as sp

    lines = [f"the quick brown fox number {i} jumps over the lazy dog {i * i}" for i in range(60)]
    model = io.BytesIO()
    terms = {"vocab_size": 60, "num_threads": 1, "minloglevel": 2}
    sp.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **terms)
    return sp.SentencePieceProcessor(model_proto=model.getvalue()).encode("the lazy fox", out_type=str)


def msgspec():
    import msgspec as ms

    kind = ms.defstruct("Kind", [("a", int), ("b", list[str])])
    return ms.json.encode(ms.json.decode(b'{"a": 1, "b": ["x"]}', type=kind)), ms.msgpack.encode([1, None])


def levenshtein():
    import Levenshtein

    return Levenshtein.distance("kitten", "sitting"), round(Levenshtein.ratio("abcd", "acbd"), 6)


def jellyfish():
    import jellyfish as jf

    return jf.soundex("Robert"), jf.metaphone("Thompson"), round(jf.jaro_similarity("abcd", "abdc"), 6)


def nh3():
    import nh3 as html

    return html.clean("<p onclick='x()'>a<script>alert(1)</script><b>c</b></p>")


def ciso8601():
    import ciso8601 as iso

    return str(iso.parse_datetime("2026-11-26T12:30:45.123+02:00"))


def pendulum():
    import pendulum as pe

    start = pe.datetime(2026, 3, 28, 12, tz="Europe/Berlin")
    return start.add(days=1).isoformat(), (pe.parse("2026-11-26") - pe.parse("2026-01-01")).in_days()


def zope_interface():
    from zope.interface import Interface, implementer, providedBy

    class Shape(Interface):
        pass

    @implementer(Shape)
    class Circle:
        pass

    return Shape.providedBy(Circle()), [each.__name__ for each in providedBy(Circle())]


def ijson():
    import ijson.backends.yajl2_c as js

    return list(js.items(b'{"a": [1, 2.5, {"b": "x"}]}', "a.item", use_float=True))


def tomli():
    import tomli as to

    return to.loads("a = 1\n[b]\nc = [1.5, 2]\nd = 2026-11-26\n")


def cython():
    from Cython.Compiler.Scanning import StringSourceDescriptor
    from Cython.Plex import Lexicon, Range, Rep1, Str

    lexicon = Lexicon([(Rep1(Range("az")), "word"), (Str(" "), None)])
    return type(lexicon).__name__, StringSourceDescriptor("n", "x").name


def python_calamine():
    import io
    import zipfile

    from python_calamine import CalamineWorkbook

    office = "urn:oasis:names:tc:opendocument:xmlns"
    cell = "<table:table-cell office:value-type='float' office:value='7'/>"
    sheet = f"<table:table table:name='s'><table:table-row>{cell * 2}</table:table-row></table:table>"
    names = " ".join(f"xmlns:{name}='{office}:{name}:1.0'" for name in ("office", "table"))
    body = f"<office:body><office:spreadsheet>{sheet}</office:spreadsheet></office:body>"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("META-INF/manifest.xml", "<manifest/>")
        archive.writestr("content.xml", f"<office:document-content {names}>{body}</office:document-content>")
    file.seek(0)
    return CalamineWorkbook.from_filelike(file).get_sheet_by_index(0).to_python()
