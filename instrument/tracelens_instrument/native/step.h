/* A training step: its span, its number in all that is recorded meanwhile, and the boundary after it.
 *
 * As with spans, what is unusual is left to `core/steps.py`: a step of its own in Python is entered then, and left.
 */

enum { SAMPLES, TOKENS, WORK_COUNT };

typedef struct {
    PyObject_HEAD
    PyObject *number, *work[WORK_COUNT]; /* as they were given; NULL for what was not */
    PyObject *fallback;                  /* entered in place of this one */
    Slots *slots;                        /* NULL while it is not entered, or by the fallback */
    Py_ssize_t offset;
    int before;
} Step;

static PyTypeObject *StepType;
static PyObject *step_fallback; /* makes the step in Python */
static PyObject *put_counter;   /* records an amount that is no plain number */
static Span *step_span, *work_spans[WORK_COUNT];

static PyObject *install_steps(PyObject *module, PyObject *args)
{
    PyObject *given[5];
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!OO:install_steps", SpanType, &given[0], SpanType, &given[1], SpanType,
                          &given[2], &given[3], &given[4]))
        return NULL;
    set_reference((PyObject **)&step_span, given[0]);
    set_reference((PyObject **)&work_spans[SAMPLES], given[1]);
    set_reference((PyObject **)&work_spans[TOKENS], given[2]);
    set_reference(&put_counter, given[3]);
    set_reference(&step_fallback, given[4]);
    return incref(Py_None);
}

static const char *const STEP_NAMES[] = {"number", "samples", "tokens"};
enum { STEP_ARGUMENTS = 3 };

static int step_argument(PyObject *name)
{
    int which = 0;
    while (which < STEP_ARGUMENTS && PyUnicode_CompareWithASCIIString(name, STEP_NAMES[which]) != 0)
        which++;
    return which;
}

static int step_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **found)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (count > STEP_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "step() takes from 1 to 3 arguments, and %zd were given", count);
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++)
        found[at] = args[at];
    for (Py_ssize_t at = 0; at < named; at++) {
        PyObject *name = PyTuple_GetItem(names, at);
        int which = step_argument(name);
        if (which == STEP_ARGUMENTS || found[which] != NULL) {
            PyErr_Format(PyExc_TypeError, "step() has no argument %R, or was given it twice", name);
            return -1;
        }
        found[which] = args[count + at];
    }
    if (found[0] == NULL) {
        PyErr_SetString(PyExc_TypeError, "step() needs the number of the step");
        return -1;
    }
    return 0;
}

static PyObject *step_make(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *found[STEP_ARGUMENTS] = {NULL};
    (void)module;
    if (step_arguments(args, count, names, found) < 0)
        return NULL;
    Step *self = PyObject_New(Step, StepType);
    if (self == NULL)
        return NULL;
    self->number = incref(found[0]);
    for (int which = 0; which < WORK_COUNT; which++) {
        PyObject *given = found[1 + which];
        self->work[which] = given == NULL || given == Py_None ? NULL : incref(given);
    }
    self->fallback = NULL;
    self->slots = NULL;
    self->offset = 0;
    self->before = -1;
    return (PyObject *)self;
}

static void step_dealloc(Step *self)
{
    Py_XDECREF(self->number);
    for (int which = 0; which < WORK_COUNT; which++)
        Py_XDECREF(self->work[which]);
    Py_XDECREF(self->fallback);
    Py_XDECREF((PyObject *)self->slots);
    free_object(self);
}

static COLD PyObject *step_enter_slow_path(Step *self)
{
    PyObject *samples = self->work[SAMPLES] ? self->work[SAMPLES] : Py_None;
    PyObject *tokens = self->work[TOKENS] ? self->work[TOKENS] : Py_None;
    PyObject *made = PyObject_CallFunctionObjArgs(step_fallback, self->number, samples, tokens, NULL);
    PyObject *entered = made ? call_method(made, "__enter__", NULL, NULL, NULL) : NULL;
    if (entered != NULL) {
        set_reference(&self->fallback, made);
        Py_DECREF(entered);
    }
    Py_XDECREF(made);
    return entered ? incref((PyObject *)self) : NULL;
}

static PyObject *step_enter(Step *self, PyObject *unused)
{
    (void)unused;
    if (!recording())
        return incref((PyObject *)self);
    ThreadState *thread_state;
    Slots *slots = fast_path_slots(&thread_state);
    int32_t number;
    Py_CLEAR(self->slots); /* entered twice: as in Python, the outer use stays open */
    if (UNLIKELY(slots == NULL || state->infers_steps || self->fallback != NULL || !PyLong_CheckExact(self->number)
                 || !take_i32(self->number, &number)))
        return step_enter_slow_path(self);
    Py_INCREF((PyObject *)slots);
    self->slots = slots;
    self->offset = slots_take(slots);
    self->before = state->step;
    Record *slot = slots_at(slots, self->offset);
    put_blank(slot, number, thread_state->index);
    slot->start_ns = now();
    put_definition(slot, step_span->definition);
    state->step = number;
    return incref((PyObject *)self);
}

static COLD PyObject *step_leave_slow_path(Step *self, PyObject *kind)
{
    PyObject *fallback = self->fallback;
    self->fallback = NULL;
    PyObject *done = call_method(fallback, "__exit__", kind, Py_None, Py_None);
    Py_DECREF(fallback);
    return done;
}

/* Record an amount of work where that is as usual; 0: it is for Python. */
static int put_amount(const Span *span, PyObject *amount)
{
    ThreadState *thread_state;
    Slots *slots = fast_path_slots(&thread_state);
    if (slots == NULL || !(PyLong_CheckExact(amount) || PyFloat_CheckExact(amount)))
        return 0;
    double value = PyFloat_AsDouble(amount);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    Record *slot = slots_at(slots, slots_take(slots));
    put_blank(slot, state->step, thread_state->index);
    memcpy(&slot->request, &value, sizeof value);
    slot->start_ns = now();
    put_definition(slot, span->definition);
    return 1;
}

static int put_work(Step *self)
{
    for (int which = 0; which < WORK_COUNT; which++) {
        PyObject *amount = self->work[which];
        if (amount == NULL || put_amount(work_spans[which], amount))
            continue;
        PyObject *done = PyObject_CallFunctionObjArgs(put_counter, (PyObject *)work_spans[which], amount, NULL);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    return 0;
}

static PyObject *step_leave(Step *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *kind = count > 0 ? args[0] : Py_None;
    if (UNLIKELY(self->fallback != NULL))
        return step_leave_slow_path(self, kind);
    Slots *slots = self->slots;
    if (slots == NULL)
        return incref(Py_None);
    int64_t end_ns = now();
    self->slots = NULL;
    put_end(slots_at(slots, self->offset), kind == Py_None ? end_ns : -end_ns);
    Py_DECREF((PyObject *)slots);
    int failed = kind == Py_None ? put_work(self) : 0;
    state->step = self->before;
    if (failed < 0)
        return NULL;
    if (LIKELY(pass_boundary(state, end_ns)) || state->recording == NULL || state->recording == Py_None)
        return incref(Py_None);
    return call_method(state->recording, "at_step_boundary", NULL, NULL, NULL);
}

static PyMethodDef step_methods[] = {
    {"__enter__", METHOD(step_enter), METH_NOARGS, "Begin the step."},
    {"__exit__", METHOD(step_leave), METH_FASTCALL, "End it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot step_slots[] = {
    {Py_tp_doc, "One training step, as `tracelens.step` returns it."},
    {Py_tp_dealloc, step_dealloc},
    {Py_tp_methods, step_methods},
    {0, NULL},
};

static PyType_Spec step_spec = {
    "tracelens_instrument.core.steps.Step", sizeof(Step), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, step_slots,
};
