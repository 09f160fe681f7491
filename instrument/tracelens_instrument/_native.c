/* The fast path of the recorder: what `core/spans.py` does, in C, into the same records.
 *
 * Only what happens in nearly every span is here. Whatever is not (nothing has been recorded yet, or not by this
 * thread; the segment is full or a sink; a value is no integer or does not fit) takes the slow path: it is handed
 * to the span's fallback in Python before anything has been written, so that both recorders cannot differ in it.
 *
 * Everything relies on the GIL: a slot is taken and written without giving it up. The parts are one
 * translation unit, so that the compiler sees through them.
 */

#include "native/base.h"

#include "native/record.h"
#include "native/clock.h"
#include "native/slots.h"
#include "native/thread_state.h"
#include "native/state.h"
#include "native/token.h"
#include "native/values.h"
#include "native/span.h"
#include "native/lookup.h"
#include "native/step.h"

static PyObject *install(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *parameters[] = {"state", "fallback", "reduce", NULL};
    PyObject *given[3];
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO:install", parameters, FieldsType, &given[0],
                                     &given[1], &given[2]))
        return NULL;
    set_reference((PyObject **)&state, given[0]);
    set_reference(&fallback_type, given[1]);
    set_reference(&reduce, given[2]);
    return incref(Py_None);
}

static PyObject *redirect(PyObject *module, PyObject *args)
{
    PyObject *slots, *memory;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:redirect", &slots, &memory))
        return NULL;
    if (Py_TYPE(slots) == SlotsType && slots_attach((Slots *)slots, memory) < 0)
        return NULL;
    return incref(Py_None);
}

static PyObject *now_in_python(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(now());
}

static PyObject *use_counter_in_python(PyObject *module, PyObject *usable)
{
    (void)module;
    use_counter(usable == Py_True);
    return incref(Py_None);
}

static PyMethodDef functions[] = {
    {"install", METHOD(install), METH_VARARGS | METH_KEYWORDS,
     "install(state, fallback, reduce)\n--\n\nConnect with the parts that are in Python; once."},
    {"install_steps", install_steps, METH_VARARGS,
     "install_steps(step, samples, tokens, put_counter, fallback)\n--\n\nConnect with core.steps; once."},
    {"span_of", span_of, METH_O, "span_of(definition)\n--\n\nMake the handle of a definition."},
    {"step", METHOD(step_make), METH_FASTCALL | METH_KEYWORDS,
     "step($module, /, number, samples=None, tokens=None)\n--\n\n"
     "One training step, around its whole body: ``with tl.step(i, samples=len(batch)):``.\n\n"
     "Everything recorded inside, by any thread, carries its number. `samples` and `tokens` are the\n"
     "work done in it: throughput, and whether ranks had the same work, come from them."},
    {"redirect", redirect, METH_VARARGS,
     "redirect(slots, memory)\n--\n\nSend whatever is still written through `slots` to `memory`."},
    {"use_counter", use_counter_in_python, METH_O,
     "use_counter(usable)\n--\n\nSay whether times may come from the processor's counter."},
    {"now", now_in_python, METH_NOARGS, "now()\n--\n\nThe monotonic clock, in nanoseconds."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddObjectRef(module, name, (PyObject *)*type) : -1;
}

static int add_types(PyObject *module)
{
    if (add_type(module, "Slots", &slots_spec, &SlotsType) < 0
        || add_type(module, "ThreadState", &thread_state_spec, &ThreadStateType) < 0
        || add_type(module, "Fields", &fields_spec, &FieldsType) < 0
        || add_type(module, "Token", &token_spec, &TokenType) < 0
        || add_type(module, "Span", &span_spec, &SpanType) < 0
        || add_type(module, "Lookup", &lookup_spec, &LookupType) < 0
        || add_type(module, "Step", &step_spec, &StepType) < 0)
        return -1;
    if (add_lookup(SpanType, "__enter__", SPAN_ENTER) < 0
        || add_lookup(SpanType, "__exit__", SPAN_LEAVE) < 0
        || add_lookup(TokenType, "__enter__", TOKEN_ENTER) < 0
        || add_lookup(TokenType, "__exit__", TOKEN_LEAVE) < 0)
        return -1;
    return 0;
}

/* One interpreter of a process can use it, once: what it remembers is not kept apart. */
static int execute(PyObject *module)
{
    static int used;
    if (used) {
        PyErr_SetString(PyExc_ImportError, "it is already in use in this process");
        return -1;
    }
    used = 1;
    for (int which = 0; which < NAME_COUNT; which++) {
        names_of[which] = PyUnicode_InternFromString(NAMES[which]);
        if (names_of[which] == NULL)
            return -1;
    }
    if (add_types(module) < 0 || PyModule_AddIntConstant(module, "REVISION", REVISION) < 0)
        return -1;
    no_token = (PyObject *)token_new();
    return no_token ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracelens_instrument._native",
    .m_doc = "The hot path of the recorder, in C; see tracelens_instrument.core.backend.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
