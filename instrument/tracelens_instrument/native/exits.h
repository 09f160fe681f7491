/* Who makes a SystemExit: `raise SystemExit("text")` calls no hook, and is forgotten before atexit runs.
 *
 * SystemExit is a static type, so Python code cannot give it another `__init__`. Its slot is found without
 * knowing the layout of types: a type of ours with a known `tp_init` shows at which offset the slot is, and
 * PyType_GetSlot has to read the same function there. Otherwise nothing is changed.
 */

static initproc program_exit_init;
static PyObject *exit_callback;
static PyInterpreterState *exit_interpreter;

static int exit_probe_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)self;
    (void)args;
    (void)kwargs;
    return 0;
}

static PyType_Slot exit_probe_slots[] = {{Py_tp_init, (void *)exit_probe_init}, {0, NULL}};
static PyType_Spec exit_probe_spec = {
    .name = "tracelens_instrument._native.ExitProbe",
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = exit_probe_slots,
};

/* It stays in the slot, and calls back only while there is a callback. */
static int exit_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int result = program_exit_init(self, args, kwargs);
    if (result < 0 || exit_callback == NULL || PyInterpreterState_Get() != exit_interpreter)
        return result;
    PyObject *callback = incref(exit_callback);
    PyObject *noted = PyObject_CallFunctionObjArgs(callback, self, NULL);
    Py_DECREF(callback);
    if (noted == NULL)
        PyErr_Clear();
    Py_XDECREF(noted);
    return result;
}

/* The slot of SystemExit, or NULL where it cannot be found for certain. */
static initproc *find_exit_slot(void)
{
    initproc *slot = NULL;
    PyObject *probe = PyType_FromSpec(&exit_probe_spec);
    PyObject *size = probe ? PyObject_GetAttrString((PyObject *)&PyType_Type, "__basicsize__") : NULL;
    size_t length = size ? PyLong_AsSize_t(size) : 0;
    Py_XDECREF(size);
    if (probe == NULL || PyErr_Occurred()) {
        PyErr_Clear();
        Py_XDECREF(probe);
        return NULL;
    }
    initproc known = exit_probe_init;
    for (size_t offset = 0; offset + sizeof known <= length; offset += sizeof known) {
        if (memcmp((char *)probe + offset, &known, sizeof known) == 0) {
            slot = (initproc *)((char *)PyExc_SystemExit + offset);
            break;
        }
    }
    Py_DECREF(probe);
    initproc current = (initproc)PyType_GetSlot((PyTypeObject *)PyExc_SystemExit, Py_tp_init);
    return slot && current && *slot == current ? slot : NULL;
}

/* Call `callback` with each new SystemExit, None: with none; say whether that works. */
static PyObject *watch_exits(PyObject *module, PyObject *callback)
{
    (void)module;
    if (callback == Py_None) {
        set_reference(&exit_callback, NULL);
        return incref(Py_True);
    }
    if (program_exit_init == NULL) {
        initproc *slot = find_exit_slot();
        if (slot == NULL)
            return incref(Py_False);
        program_exit_init = *slot;
        *slot = exit_init;
    }
    exit_interpreter = PyInterpreterState_Get();
    set_reference(&exit_callback, callback);
    return incref(Py_True);
}
