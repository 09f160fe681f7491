/* What spans read: the state of the recorder, and the thread they are in. */

typedef struct {
    PyObject_HEAD
    PyObject *segment, *waiting, *recording, *local, *blank, *blank_beside_bytes;
    Slots *slots; /* those of `segment`, if they are ours */
    int step;
} Fields;

static PyTypeObject *FieldsType;
static Fields *state; /* tracelens_instrument.core.state.STATE */

static PyObject *fields_get_segment(Fields *self, void *unused)
{
    (void)unused;
    return incref(self->segment ? self->segment : Py_None);
}

static int fields_set_segment(Fields *self, PyObject *segment, void *unused)
{
    (void)unused;
    if (segment == Py_None)
        segment = NULL;
    PyObject *slots = segment ? PyObject_GetAttrString(segment, "slots") : NULL;
    if (segment != NULL && slots == NULL)
        return -1;
    if (slots != NULL && Py_TYPE(slots) != SlotsType) {
        Py_DECREF(slots);
        slots = NULL;
    }
    PyObject *before = (PyObject *)self->slots;
    self->slots = (Slots *)slots;
    set_reference(&self->segment, segment);
    Py_XDECREF(before);
    return 0;
}

static PyObject *fields_get_local(Fields *self, void *unused)
{
    (void)unused;
    return incref(self->local ? self->local : Py_None);
}

static int fields_set_local(Fields *self, PyObject *local, void *unused)
{
    (void)unused;
    epoch++;
    set_reference(&self->local, local);
    return 0;
}

static int fields_traverse(Fields *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->segment);
    Py_VISIT(self->waiting);
    Py_VISIT(self->recording);
    Py_VISIT(self->local);
    Py_VISIT(self->blank);
    Py_VISIT(self->blank_beside_bytes);
    Py_VISIT(self->slots);
    return 0;
}

static int fields_clear(Fields *self)
{
    Py_CLEAR(self->segment);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->recording);
    Py_CLEAR(self->local);
    Py_CLEAR(self->blank);
    Py_CLEAR(self->blank_beside_bytes);
    Py_CLEAR(self->slots);
    return 0;
}

static void fields_dealloc(Fields *self)
{
    PyObject_GC_UnTrack(self);
    fields_clear(self);
    free_gc_object(self);
}

static PyMemberDef fields_members[] = {
    {"waiting", T_OBJECT, offsetof(Fields, waiting), 0, NULL},
    {"recording", T_OBJECT, offsetof(Fields, recording), 0, NULL},
    {"blank", T_OBJECT, offsetof(Fields, blank), 0, NULL},
    {"blank_beside_bytes", T_OBJECT, offsetof(Fields, blank_beside_bytes), 0, NULL},
    {"step", T_INT, offsetof(Fields, step), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef fields_getset[] = {
    {"segment", (getter)fields_get_segment, (setter)fields_set_segment, NULL, NULL},
    {"local", (getter)fields_get_local, (setter)fields_set_local, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "The state that spans read, as tracelens_instrument.core.state.State describes it."},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},
    {Py_tp_members, fields_members},
    {Py_tp_getset, fields_getset},
    {0, NULL},
};

static PyType_Spec fields_spec = {
    "tracelens_instrument._native.Fields", sizeof(Fields), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, fields_slots,
};

static inline int recording(void)
{
    return state->segment != NULL || (state->waiting != NULL && state->waiting != Py_None);
}

static COLD ThreadState *find_thread_state(void)
{
    if (state->local == NULL)
        return NULL;
    unsigned long long since = epoch;
    PyObject *found = PyObject_GetAttrString(state->local, "thread_state");
    if (found == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (Py_TYPE(found) == ThreadStateType) {
        cached_thread.thread_state = (ThreadState *)found;
        cached_thread.epoch = since;
    }
    Py_DECREF(found); /* if nobody else holds it, it has just forgotten itself */
    return cached_thread.epoch == epoch ? cached_thread.thread_state : NULL;
}

/* This thread's state; NULL, without an exception, while it has none. */
static inline ThreadState *current_thread_state(void)
{
    return LIKELY(cached_thread.epoch == epoch) ? cached_thread.thread_state : find_thread_state();
}
