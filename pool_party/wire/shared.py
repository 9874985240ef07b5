"""`share`: an array in memory that all processes of a pool see, and that costs a handle to pass on.

The memory has no name (a memfd) and goes with its last user. What travels is decided where values are encoded: any
contiguous part of shared memory goes by handle, whichever array or memoryview it belongs to; see
`native/channel/memory.c`.
"""

import copyreg
import sys
from typing import Any

from pool_party import _native


def share(array: Any, *, readonly: bool = False) -> Any:
    """Copy `array` into shared memory: what one task writes there, all others and the caller see.

    Args:
        array: A NumPy array of any type that has a buffer, or another object with a buffer, such as bytes or
            array.array.
        readonly: Whether nobody can write to it.

    Returns:
        A plain ndarray of the same shape, type and order for a NumPy array, else a memoryview of the same format. It
        and its contiguous parts are passed to tasks, and returned, by handle, in every kind of pool. Other parts, and
        results of computations, are copied as usual.

    Raises:
        TypeError: `array` has no buffer, as arrays of objects and of datetime64, lists and pandas' tables; or it has
            a mask.
        OSError: There is not enough memory, or no file descriptor.

    Guarantees:
        Any thread may call it, and it blocks only to copy. There is no lock: tasks that write to the same place must
        agree among themselves. A forked child sees the same memory. The memory has no name, and is freed when the last
        array or view of it goes, in all processes.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
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


def _reduce(view: memoryview) -> Any:
    """A view of shared memory pickles where buffers travel out of band; other views do not, as ever."""
    from pickle import PickleBuffer

    if not _native.is_shared(view):
        raise TypeError("cannot pickle 'memoryview' object")
    return _restore, (PickleBuffer(view.cast("B")), view.format, view.shape)


copyreg.pickle(memoryview, _reduce)
