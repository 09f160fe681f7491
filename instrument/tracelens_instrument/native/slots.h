/* The slots of a segment; an iterator, for the parts of the recorder that are in Python. */

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    char *base;
    Py_ssize_t next, end;
} Slots;

static PyTypeObject *SlotsType;

static int slots_attach(Slots *self, PyObject *memory)
{
    Py_buffer view;
    if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0)
        return -1;
    if (view.len < (Py_ssize_t)sizeof(Record) || view.len < self->end
        || (uintptr_t)view.buf % sizeof(int64_t) != 0) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "memory too small, or not aligned, for records");
        return -1;
    }
    Py_buffer before = self->memory;
    self->memory = view;
    self->base = view.buf;
    PyBuffer_Release(&before);
    return 0;
}

static PyObject *slots_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *memory;
    if (!PyArg_ParseTuple(args, "O:Slots", &memory))
        return NULL;
    Slots *self = PyObject_New(Slots, type);
    if (self == NULL)
        return NULL;
    memset(&self->memory, 0, sizeof self->memory);
    self->base = NULL;
    self->next = sizeof(Record);
    self->end = 0;
    if (slots_attach(self, memory) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->end = self->memory.len / (Py_ssize_t)sizeof(Record) * (Py_ssize_t)sizeof(Record);
    return (PyObject *)self;
}

static void slots_dealloc(Slots *self)
{
    PyBuffer_Release(&self->memory);
    free_object(self);
}

static inline int slots_left(const Slots *self)
{
    return self->next < self->end;
}

/* Memory that nobody has written for long comes too late when it is asked for by the write itself. */
static inline Py_ssize_t slots_take(Slots *self)
{
    Py_ssize_t offset = self->next;
    self->next += sizeof(Record);
    __builtin_prefetch(self->base + self->next + sizeof(Record), 1);
    return offset;
}

static inline Record *slots_at(const Slots *self, Py_ssize_t offset)
{
    return (Record *)(self->base + offset);
}

static PyObject *slots_next(Slots *self)
{
    if (!slots_left(self))
        return NULL;
    Py_ssize_t offset = slots_take(self);
    return Py_BuildValue("(nn)", offset / 8, offset);
}

static inline Py_ssize_t slots_count(const Slots *self)
{
    return (self->end - self->next) / (Py_ssize_t)sizeof(Record);
}

static PyObject *slots_length_hint(Slots *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(slots_count(self));
}

static PyMethodDef slots_methods[] = {
    {"__length_hint__", METHOD(slots_length_hint), METH_NOARGS, "How many are left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots_slots[] = {
    {Py_tp_doc, "Slots(memory)\n--\n\n"
                "Where the records that fit into `memory` are, each once: in words of 8 bytes, and in bytes."},
    {Py_tp_new, slots_new},
    {Py_tp_dealloc, slots_dealloc},
    {Py_tp_iter, incref},
    {Py_tp_iternext, slots_next},
    {Py_tp_methods, slots_methods},
    {0, NULL},
};

static PyType_Spec slots_spec = {
    "tracelens_instrument._native.Slots", sizeof(Slots), 0, Py_TPFLAGS_DEFAULT, slots_slots,
};
