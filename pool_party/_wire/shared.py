"""`share`: an array in memory that all processes of a pool see, and that is passed as a handle.

The memory has no name (a memfd) and is freed with its last user. The encoder decides what is passed as a handle: any
contiguous part of shared memory, whichever array or memoryview it belongs to. See `native/channel/memory.c`.
"""

import copyreg
import sys
from collections.abc import Buffer
from typing import Any, Protocol, overload

from pool_party import _native


class _Array(Protocol):
    """What arrays of NumPy have, and other objects with a buffer have not."""

    @property
    def dtype(self) -> Any: ...


@overload
def share[A: _Array](array: A, *, readonly: bool = False) -> A: ...


@overload
def share(array: Buffer, *, readonly: bool = False) -> memoryview: ...


def share(array: Any, *, readonly: bool = False) -> Any:
    """Copy `array` into shared memory, where the caller and all tasks see each other's changes.

    Args:
        array: A NumPy array of any type that has a buffer, or another object with a buffer, such as bytes or
            array.array.
        readonly: Whether writes to it are refused.

    Returns:
        For a NumPy array, a plain ndarray of the same shape, type and order; otherwise a memoryview of the same format.
        Every kind of pool passes and returns it and its contiguous parts as handles. Other parts, and results of
        computations, are copied as usual.

    Raises:
        TypeError: `array` has a mask or no buffer. Lists, pandas' tables, and arrays of objects or of datetime64 have
            no buffer.
        OSError: There is not enough memory, or no file descriptor is left.

    With kind="dask", whose workers are on other machines, tasks get the memory as it was when their call was made, and
    cannot write to it.

    Guarantees:
        Any thread may call it, and it blocks only to copy. There is no lock: tasks that write to the same place must
        synchronize themselves. A forked child sees the same memory. The memory has no name, and is freed when the last
        array or view of it in any process is deleted.
    """
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "ndarray") and isinstance(array, numpy.ndarray):  # another thread may be importing it
        return _share_array(numpy, array, readonly)
    return _share_buffer(array, readonly)


def _share_array(numpy: Any, array: Any, readonly: bool) -> Any:
    if "numpy.ma" in sys.modules and isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("masked arrays cannot be shared: share the data and the mask as two arrays")
    flags = array.flags
    order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    try:
        memoryview(array)
    except (ValueError, BufferError) as reason:
        raise TypeError(f"arrays of dtype {array.dtype} cannot be shared: {reason}") from None
    if array.dtype.hasobject:
        raise TypeError(f"arrays of dtype {array.dtype} cannot be shared: they hold references to objects")
    memory = _native.share(array.nbytes)
    numpy.ndarray(array.shape, array.dtype, memory, order=order)[...] = array
    if readonly:
        memory.protect()
    return numpy.ndarray(array.shape, array.dtype, memory, order=order)


def _share_buffer(buffer: Any, readonly: bool) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError:
        name = type(buffer).__name__
        raise TypeError(f"a {name} has no buffer to share: pass an array, as numpy.asarray() makes") from None
    with view:
        memory = _native.share(view.nbytes)
        with memoryview(memory) as target:
            target[:] = view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()
        if readonly:
            memory.protect()
        return _cast(memoryview(memory), view.format, view.shape)


def _cast(view: memoryview, format: str, shape: Any) -> memoryview:
    if format == "B" and len(shape) == 1:
        return view
    return view.cast(format, shape) if view.nbytes else view.cast(format)  # type: ignore[call-overload,no-any-return]


def _restore(buffer: Any, format: str, shape: tuple[int, ...]) -> memoryview:
    return _cast(memoryview(buffer), format, shape)


def reduce_view(view: memoryview) -> Any:
    """Pickle a view of shared memory, if buffers travel out of band. Other views do not pickle, as usual."""
    from pickle import PickleBuffer

    if not _native.is_shared(view):
        raise TypeError("cannot pickle 'memoryview' object")
    # Of the memory itself: CPython 3.12 crashes if it collects a view together with what exports it.
    memory = _native.open_shared(_native.name_shared(view)).obj
    return _restore, (PickleBuffer(memory), view.format, view.shape)


copyreg.pickle(memoryview, reduce_view)
