/* What spans read: the state of the recorder, and the thread they are in. */

typedef struct {
    PyObject_HEAD
    PyObject *segment, *waiting, *recording, *local;
    Slots *slots; /* those of `segment`, if they are ours */
    int step;
    char infers_steps; /* whether hooks may begin steps: the user has marked none */
    /* Boundaries between steps with nothing to do, see `arm`: how many slots were left at the latest, how
     * many a step takes at most, and how many are left at least. */
    int armed;
    Py_ssize_t boundary, most, least;
    int64_t until_ns;
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
    PyObject *slots = segment ? attribute(segment, "slots") : NULL;
    if (segment != NULL && slots == NULL)
        return -1;
    if (slots != NULL && Py_TYPE(slots) != SlotsType) {
        Py_DECREF(slots);
        slots = NULL;
    }
    PyObject *before = (PyObject *)self->slots;
    self->slots = (Slots *)slots;
    self->armed = 0;
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
    Py_VISIT(self->slots);
    return 0;
}

static int fields_clear(Fields *self)
{
    Py_CLEAR(self->segment);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->recording);
    Py_CLEAR(self->local);
    Py_CLEAR(self->slots);
    return 0;
}

static void fields_dealloc(Fields *self)
{
    PyObject_GC_UnTrack(self);
    fields_clear(self);
    free_gc_object(self);
}

/* What the fallback in Python puts into its records: the bytes that change with the step, from `first` on. */
static PyObject *blank_from(const Fields *self, size_t first)
{
    Record record = BLANK;
    record.step = self->step;
    return PyBytes_FromStringAndSize((const char *)&record + first, offsetof(Record, thread) - first);
}

static PyObject *fields_get_blank(Fields *self, void *unused)
{
    (void)unused;
    return blank_from(self, offsetof(Record, bytes));
}

static PyObject *fields_get_blank_beside_bytes(Fields *self, void *unused)
{
    (void)unused;
    return blank_from(self, offsetof(Record, request));
}

/* How many slots were left at the latest boundary, be it one that was passed over. */
static PyObject *fields_get_left(Fields *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(self->boundary);
}

static PyObject *fields_arm(Fields *self, PyObject *args)
{
    long long ns;
    Py_ssize_t most, least;
    if (!PyArg_ParseTuple(args, "Lnn:arm", &ns, &most, &least))
        return NULL;
    self->armed = self->slots != NULL;
    if (self->armed) {
        self->boundary = slots_count(self->slots);
        self->most = most;
        self->least = least;
        self->until_ns = now() + ns;
    }
    return PyBool_FromLong(self->armed);
}

/* Whether nothing has to be done at a boundary; then it is noted, else it is for Python. */
static inline int pass_boundary(Fields *self, int64_t moment)
{
    if (UNLIKELY(!self->armed || moment >= self->until_ns))
        return 0;
    Py_ssize_t left = slots_count(self->slots);
    if (UNLIKELY(self->boundary - left > self->most || left < self->least))
        return 0;
    self->boundary = left;
    return 1;
}

static PyObject *fields_pass_boundary(Fields *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(self->armed && pass_boundary(self, now()));
}

static PyObject *fields_disarm(Fields *self, PyObject *unused)
{
    (void)unused;
    self->armed = 0;
    return incref(Py_None);
}

static PyMethodDef fields_methods[] = {
    {"arm", METHOD(fields_arm), METH_VARARGS, NULL},
    {"disarm", METHOD(fields_disarm), METH_NOARGS, NULL},
    {"pass_boundary", METHOD(fields_pass_boundary), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fields_members[] = {
    {"waiting", T_OBJECT, offsetof(Fields, waiting), 0, NULL},
    {"recording", T_OBJECT, offsetof(Fields, recording), 0, NULL},
    {"step", T_INT, offsetof(Fields, step), 0, NULL},
    {"infers_steps", T_BOOL, offsetof(Fields, infers_steps), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef fields_getset[] = {
    {"segment", (getter)fields_get_segment, (setter)fields_set_segment, NULL, NULL},
    {"local", (getter)fields_get_local, (setter)fields_set_local, NULL, NULL},
    {"blank", (getter)fields_get_blank, NULL, NULL, NULL},
    {"blank_beside_bytes", (getter)fields_get_blank_beside_bytes, NULL, NULL, NULL},
    {"left", (getter)fields_get_left, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "The state that spans read, as tracelens_instrument.core.state.State describes it."},
    {Py_tp_dealloc, fields_dealloc},
    {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},
    {Py_tp_methods, fields_methods},
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
    PyObject *found = attribute(state->local, "thread_state");
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
