/* An extension module that locks a file, in several ways. */
#include <Python.h>

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* lock(fd, how): 0, or the error. */
static PyObject *lock(PyObject *module, PyObject *args) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const char *how;
    int fd, failed;
    (void)module;
    if (!PyArg_ParseTuple(args, "is", &fd, &how))
        return NULL;
    if (strcmp(how, "flock") == 0)
        failed = flock(fd, LOCK_EX | LOCK_NB);
    else if (strcmp(how, "lockf") == 0)
        failed = lockf(fd, F_TLOCK, 0);
    else
        failed = fcntl(fd, strcmp(how, "fcntl") == 0 ? F_SETLK : F_SETLKW, &whole);
    return PyLong_FromLong(failed ? errno : 0);
}

/* flags(fd): what fcntl says of the file, without an argument. */
static PyObject *flags(PyObject *module, PyObject *fd) {
    (void)module;
    return PyLong_FromLong(fcntl((int)PyLong_AsLong(fd), F_GETFL));
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

static PyMethodDef functions[] = {{"lock", lock, METH_VARARGS, "Locks a file."}, {"flags", flags, METH_O, "Its flags."}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = TEXT(NAME), .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC INIT(NAME)(void) { return PyModule_Create(&def); }
