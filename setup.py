"""Builds the extension, and the text for PyPI; all other settings are in pyproject.toml.

The text is README.md with absolute links, because PyPI would resolve relative ones on its own site.

setuptools compiles and links with the flags with which the interpreter was built. Two kinds of them are not useful
here: debug sections, which make the file four times as large, and a RUNPATH, which names a folder of the machine that
built the interpreter. Both are left out unless the environment has them: CFLAGS=-g, LDFLAGS=-Wl,-rpath,/folder.
"""

import os
import pathlib
import platform
import re
import shlex
import sys
import urllib.parse

from setuptools import setup
from setuptools.command.build_ext import build_ext

UNWANTED = ("-g", "-Wl,-rpath,", "-Wl,-rpath=")  # prefixes of flags
VARIABLES = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")

ROOT = pathlib.Path(__file__).parent
CODE_OR_LINK = re.compile(r"```.*?```|`[^`]*`|(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", re.S)


def read_long_description():
    """Return README.md with links to the repository in [project.urls]. Pictures are linked as files, not as pages."""
    # This does not use tomllib, so that older Pythons reach pip's message that they are too old.
    source = re.search(r'^Source = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]

    def make_absolute(match):
        if match["text"] is None:  # code, in which brackets are no links
            return match[0]
        view = "raw" if match["text"].startswith("!") else "blob"
        return f"{match['text']}({urllib.parse.urljoin(f'{source}/{view}/main/README.md', match['target'])})"

    return CODE_OR_LINK.sub(make_absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


class BuildExtension(build_ext):
    """Builds without the interpreter's own flags for debug sections and for a RUNPATH. It compiles what has changed."""

    def finalize_options(self):
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / f"temp-{sys.implementation.cache_tag}{sys.abiflags}")  # stays

    def build_extensions(self):
        system, machine = platform.system(), platform.machine()
        if system != "Linux" or machine not in ("x86_64", "aarch64"):
            sys.exit(f"composable-pool supports Linux on x86-64 and arm64; this is {system} on {machine}")
        wanted = {flag for name in VARIABLES for flag in shlex.split(os.environ.get(name, ""))}
        for name in ("compiler", "compiler_so", "linker_so"):
            flags = getattr(self.compiler, name)
            kept = [flag for flag in flags if flag in wanted or not flag.startswith(UNWANTED)]
            setattr(self.compiler, name, kept)
        self._keep_objects()
        super().build_extensions()

    def _keep_objects(self):
        """Do not compile a file again that is older than its object, as are all headers, with the same command."""
        compile_one = self.compiler._compile
        headers = max(path.stat().st_mtime_ns for path in (ROOT / "native").rglob("*.h"))

        def _compile(obj, src, *more):
            made, noted = pathlib.Path(obj), pathlib.Path(f"{obj}.command")
            command = repr((sys.version, self.compiler.compiler_so, more))
            newest = max(headers, pathlib.Path(src).stat().st_mtime_ns)
            is_known = made.exists() and noted.exists() and noted.read_text() == command
            if not is_known or made.stat().st_mtime_ns <= newest:
                compile_one(obj, src, *more)
                noted.write_text(command)

        self.compiler._compile = _compile


setup(
    cmdclass={"build_ext": BuildExtension},
    long_description=read_long_description(),
    long_description_content_type="text/markdown",
)
