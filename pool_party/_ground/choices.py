"""The words that arguments may be. Type checkers read them, and whoever evaluates annotations."""

from typing import Literal

type Kind = Literal["process", "subprocess", "thread", "interp", "subinterpreter", "dask", "mpi"]
type PatchingKind = Literal["process", "thread", "interp", "auto"]
type PolicyName = Literal["dynamic", "static", "exclusive", "counting"]
type Scope = Literal["pool", "machine"]  # whose regions share a gate: the pool's or the machine's
type Output = Literal["relay"]
type OnCancel = Literal["abandon", "wait", "kill"]
type Errors = Literal["raise", "return"]
