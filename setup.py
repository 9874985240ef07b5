"""Builds the extension; all settings are in pyproject.toml.

setuptools compiles and links with the flags that the interpreter itself was built with. Two of them are of no use to
us: debug sections, which make the file four times as large, and a RUNPATH, which names a folder of the machine that
built the interpreter. Both are left out, unless the environment asks for them: CFLAGS=-g, LDFLAGS=-Wl,-rpath,/folder.
"""

import os
import shlex

from setuptools import setup
from setuptools.command.build_ext import build_ext

UNWANTED = ("-g", "-Wl,-rpath,", "-Wl,-rpath=")  # prefixes of flags
VARIABLES = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")


class BuildExtension(build_ext):
    """Builds without the interpreter's own flags for debug sections and for a RUNPATH."""

    def build_extensions(self):
        wanted = {flag for name in VARIABLES for flag in shlex.split(os.environ.get(name, ""))}
        for name in ("compiler", "compiler_so", "linker_so"):
            flags = getattr(self.compiler, name)
            kept = [flag for flag in flags if flag in wanted or not flag.startswith(UNWANTED)]
            setattr(self.compiler, name, kept)
        super().build_extensions()


setup(cmdclass={"build_ext": BuildExtension})
