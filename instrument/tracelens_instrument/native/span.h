/* A kind of work, named once and used many times. */

typedef struct {
    PyObject_HEAD
    Call call;
    PyObject *enter, *leave, *fallback;
    unsigned int definition;
} Span;

static PyTypeObject *SpanType;

static PyObject *fallback_type; /* makes the Python span of a definition */
static PyObject *reduce;   /* makes what pickles a span, from its definition */
static PyObject *no_token; /* the token of what is not recorded */

/* ---- The slow path ---------------------------------------------------------------------------- */

static PyObject *keywords(PyObject *const *values, PyObject *names)
{
    PyObject *found = PyDict_New();
    Py_ssize_t count = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t at = 0; found != NULL && at < count; at++)
        if (PyDict_SetItem(found, PyTuple_GetItem(names, at), values[at]) < 0)
            Py_CLEAR(found);
    return found;
}

static PyObject *positionals(PyObject *const *args, Py_ssize_t count)
{
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t at = 0; found != NULL && at < count; at++)
        if (PyTuple_SetItem(found, at, incref(args[at])) < 0)
            Py_CLEAR(found);
    return found;
}

static PyObject *span_fallback(Span *self)
{
    if (self->fallback == NULL) {
        PyObject *made = PyObject_CallFunction(fallback_type, "I", self->definition);
        if (made == NULL)
            return NULL;
        set_reference(&self->fallback, made);
        Py_DECREF(made);
    }
    return self->fallback;
}

/* Let the fallback do it, whatever it was. */
static COLD PyObject *slow_path(Span *self, const char *name, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    PyObject *of = span_fallback(self);
    PyObject *method = of ? attribute(of, name) : NULL;
    PyObject *given = positionals(args, count);
    PyObject *named = keywords(args + count, names);
    PyObject *result = NULL;
    if (method != NULL && given != NULL && named != NULL)
        result = PyObject_Call(method, given, named);
    Py_XDECREF(method);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

static COLD PyObject *begin_slow_path(Span *self, PyObject *const *args, Py_ssize_t count,
                                        PyObject *names)
{
    if (!recording() && count <= BEGIN_COUNT && names_valid(names, (int)count, BEGIN_COUNT))
        return incref(no_token);
    return slow_path(self, "begin", args, count, names);
}

static COLD PyObject *complete_slow_path(Span *self, PyObject *const *args, Py_ssize_t count,
                                           PyObject *names)
{
    if (!recording() && (count == 2 || count == 3) && names_valid(names, (int)count - 2, NAME_COUNT))
        return incref(Py_None);
    return slow_path(self, "complete", args, count, names);
}

/* Enter through the fallback's token, and keep that; what is not recorded is not kept. */
static COLD PyObject *enter_slow_path(Span *self)
{
    if (!recording())
        return incref((PyObject *)self);
    PyObject *token = slow_path(self, "begin", NULL, 0, NULL);
    if (token == NULL)
        return NULL;
    ThreadState *thread_state = state->segment ? current_thread_state() : NULL;
    if (thread_state != NULL && thread_state_make_room(thread_state) == 0)
        thread_state_push(thread_state, (PyObject *)self, token, -1);
    Py_DECREF(token);
    return incref((PyObject *)self);
}

/* ---- The fast path ---------------------------------------------------------------------------- */

/* The slots with one to take, if this thread and the next record are known to be ordinary. */
static inline Slots *fast_path_slots(ThreadState **thread_state)
{
    Slots *slots = state->slots;
    if (UNLIKELY(slots == NULL || !slots_left(slots)))
        return NULL;
    *thread_state = current_thread_state();
    return LIKELY(*thread_state != NULL) ? slots : NULL;
}

static ALWAYS_INLINE PyObject *begin(Span *self, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names)
{
    ThreadState *thread_state;
    Slots *slots = fast_path_slots(&thread_state);
    if (UNLIKELY(slots == NULL))
        return begin_slow_path(self, args, count, names);
    Record *slot = slots_at(slots, slots->next);
    Values values = {.slot = slot};
    put_blank(slot, state->step, thread_state->index);
    if (UNLIKELY(!take_begin(&values, args, count, names)))
        return begin_slow_path(self, args, count, names);
    Token *token = token_new();
    if (UNLIKELY(token == NULL)) {
        PyErr_Clear();
        return incref(no_token);
    }
    Py_INCREF((PyObject *)slots);
    token->slots = slots;
    token->offset = slots_take(slots);
    slot->start_ns = now();
    put_definition(slot, self->definition);
    return (PyObject *)token;
}

static NEVER_INLINE PyObject *begin_with_values(Span *self, PyObject *const *args, Py_ssize_t count,
                                                PyObject *names)
{
    return begin(self, args, count, names);
}

/* Compiled twice: what values need would cost also those who give none. */
static PyObject *span_begin(Span *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count > 0 || names != NULL)
        return begin_with_values(self, args, count, names);
    return begin(self, NULL, 0, NULL);
}

static PyObject *span_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return span_begin((Span *)self, args, nargsf & ~ARGUMENTS_OFFSET, names);
}

static PyObject *span_complete(Span *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    ThreadState *thread_state;
    Slots *slots = fast_path_slots(&thread_state);
    if (UNLIKELY(slots == NULL))
        return complete_slow_path(self, args, count, names);
    Record *slot = slots_at(slots, slots->next);
    Values values = {.slot = slot};
    put_blank(slot, state->step, thread_state->index);
    if (UNLIKELY(!take_complete(&values, args, count, names)))
        return complete_slow_path(self, args, count, names);
    slots_take(slots);
    put_definition(slot, self->definition);
    return incref(Py_None);
}

static PyObject *span_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    ThreadState *thread_state;
    Slots *slots = fast_path_slots(&thread_state);
    if (UNLIKELY(slots == NULL))
        return enter_slow_path((Span *)self);
    if (UNLIKELY(thread_state_make_room(thread_state) < 0))
        return incref(self);
    Py_ssize_t offset = slots_take(slots);
    Record *slot = slots_at(slots, offset);
    thread_state_push(thread_state, self, (PyObject *)slots, offset);
    put_blank(slot, state->step, thread_state->index);
    slot->start_ns = now();
    put_definition(slot, ((Span *)self)->definition);
    return incref(self);
}

static COLD PyObject *leave_through_token(PyObject *token, int failed)
{
    PyObject *done = call_method(token, "end", failed ? Py_True : Py_False, NULL, NULL);
    Py_DECREF(token);
    return done;
}

static PyObject *span_leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (state->segment == NULL)
        return incref(Py_None);
    int64_t end_ns = now();
    int failed = count > 0 && args[0] != Py_None;
    ThreadState *thread_state = current_thread_state();
    Entry entry;
    if (UNLIKELY(thread_state == NULL || !thread_state_pop(thread_state, self, &entry)))
        return incref(Py_None); /* it was entered before recording began */
    Py_DECREF(self);
    if (UNLIKELY(entry.offset < 0))
        return leave_through_token(entry.held, failed);
    put_end(slots_at((Slots *)entry.held, entry.offset), failed ? -end_ns : end_ns);
    Py_DECREF(entry.held);
    return incref(Py_None);
}

/* ---- The type --------------------------------------------------------------------------------- */

static PyMethodDef enter_def = {"__enter__", span_enter, METH_NOARGS, "Begin a span."};
static PyMethodDef leave_def = {"__exit__", METHOD(span_leave), METH_FASTCALL, "End it."};

static PyObject *span_made(PyTypeObject *type, unsigned int definition)
{
    if (state == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "make spans through tracelens.span");
        return NULL;
    }
    Span *self = PyObject_GC_New(Span, type);
    if (self == NULL)
        return NULL;
    self->call = span_call;
    self->definition = definition;
    self->fallback = NULL;
    self->enter = PyCFunction_NewEx(&enter_def, (PyObject *)self, NULL);
    self->leave = PyCFunction_NewEx(&leave_def, (PyObject *)self, NULL);
    PyObject_GC_Track(self);
    if (self->enter == NULL || self->leave == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *span_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *parameters[] = {"definition", NULL};
    unsigned int definition;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I:Span", parameters, &definition))
        return NULL;
    return span_made(type, definition);
}

/* The same in half the time, for handles that are made at each use. */
static PyObject *span_of(PyObject *module, PyObject *definition)
{
    (void)module;
    unsigned long number = PyLong_AsUnsignedLong(definition);
    return number == (unsigned long)-1 && PyErr_Occurred() ? NULL : span_made(SpanType, (unsigned int)number);
}

static int span_traverse(Span *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->enter);
    Py_VISIT(self->leave);
    Py_VISIT(self->fallback);
    return 0;
}

static int span_clear(Span *self)
{
    Py_CLEAR(self->enter);
    Py_CLEAR(self->leave);
    Py_CLEAR(self->fallback);
    return 0;
}

static void span_dealloc(Span *self)
{
    PyObject_GC_UnTrack(self);
    span_clear(self);
    free_gc_object(self);
}

static PyObject *span_reduce(Span *self, PyObject *unused)
{
    (void)unused;
    return PyObject_CallFunction(reduce, "I", self->definition);
}

static PyObject *span_tp_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *begin = attribute(self, "begin");
    PyObject *token = begin ? PyObject_Call(begin, args, kwargs) : NULL;
    Py_XDECREF(begin);
    return token;
}

static PyMethodDef span_methods[] = {
    {"begin", METHOD(span_begin), METH_FASTCALL | METH_KEYWORDS,
     "begin($self, /, track=None, nbytes=-1, seq=4294967295, bucket=-1, peer=-1, key=-1, request=0, "
     "queue_depth=65535, micro_step=65535, step=None)\n--\n\n"
     "Begin a span now, on this thread or on `track`; what is returned ends it."},
    {"complete", METHOD(span_complete), METH_FASTCALL | METH_KEYWORDS,
     "complete($self, /, start_ns, end_ns, track=None, *, failed=False, estimated=False, **values)\n"
     "--\n\nRecord a span that is over, by times of the monotonic clock."},
    {"__reduce__", METHOD(span_reduce), METH_NOARGS,
     "Let a handle be copied, and sent to a process where other numbers stand for the same."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef span_members[] = {
    {"definition", T_UINT, offsetof(Span, definition), READONLY, "Its number in the side file."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Span, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot span_slots[] = {
    {Py_tp_doc, "Span(definition)\n--\n\n"
                "A kind of work, named once: ``with SPAN:`` or ``with SPAN(nbytes=n):`` records a "
                "piece of it."},
    {Py_tp_new, span_new},
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_traverse, span_traverse},
    {Py_tp_clear, span_clear},
    {Py_tp_call, span_tp_call},
    {Py_tp_methods, span_methods},
    {Py_tp_members, span_members},
    {0, NULL},
};

static PyType_Spec span_spec = {
    "tracelens_instrument.core.spans.Span", sizeof(Span), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, span_slots,
};
