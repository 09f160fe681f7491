/* What all parts need: Python's limited API, and small helpers on objects. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Stable since Python 3.12 and the same before, but not in 3.11's limited headers. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))

#define REVISION 8 /* of what both parts expect of each other, as in core/backend.py */

typedef PyObject *(*Call)(PyObject *, PyObject *const *, size_t, PyObject *);

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((cold, noinline))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NEVER_INLINE __attribute__((noinline))

static void set_reference(PyObject **where, PyObject *value)
{
    PyObject *before = *where;
    Py_XINCREF(value);
    *where = value;
    Py_XDECREF(before);
}

static inline PyObject *incref(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

/* An attribute by its interned name: the cache of types keeps each other name that it is asked for. */
static PyObject *attribute(PyObject *of, const char *name)
{
    PyObject *interned = PyUnicode_InternFromString(name);
    PyObject *found = interned ? PyObject_GetAttr(of, interned) : NULL;
    Py_XDECREF(interned);
    return found;
}

/* Call a method with up to three arguments, then NULL. */
static PyObject *call_method(PyObject *of, const char *name, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *method = attribute(of, name);
    PyObject *result = method ? PyObject_CallFunctionObjArgs(method, first, second, third, NULL) : NULL;
    Py_XDECREF(method);
    return result;
}

/* Free an object of a heap type, which holds a reference to its type. */
static void free_object(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void free_gc_object(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}
