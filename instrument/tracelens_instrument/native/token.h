/* A span that has begun. */

typedef struct {
    PyObject_HEAD
    Call call;
    Slots *slots; /* NULL once it has ended */
    Py_ssize_t offset;
} Token;

static PyTypeObject *TokenType;

static PyObject *token_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* Tokens come and go with every span, so some are kept for the next ones, with their type. */
#define SPARE_TOKENS 32
static Token *spare_tokens[SPARE_TOKENS];
static int spare_count;

static inline Token *token_new(void)
{
    Token *self;
    if (LIKELY(spare_count > 0)) {
        self = spare_tokens[--spare_count];
        Py_SET_REFCNT((PyObject *)self, 1);
        return self;
    }
    self = PyObject_New(Token, TokenType);
    if (self != NULL) {
        self->call = token_call;
        self->slots = NULL;
    }
    return self;
}

static void token_dealloc(Token *self)
{
    Slots *slots = self->slots;
    self->slots = NULL;
    if (spare_count < SPARE_TOKENS)
        spare_tokens[spare_count++] = self;
    else
        free_object(self);
    Py_XDECREF((PyObject *)slots);
}

static inline void token_close(Token *self, int64_t end_ns)
{
    Slots *slots = self->slots;
    self->slots = NULL;
    put_end(slots_at(slots, self->offset), end_ns);
    Py_DECREF(slots);
}

static inline PyObject *token_leave(Token *self, PyObject *kind)
{
    if (self->slots != NULL) {
        int64_t end_ns = now();
        token_close(self, kind == Py_None ? end_ns : -end_ns);
    }
    return incref(Py_None);
}

/* Without arguments it enters, with those of `__exit__` it leaves: see lookup.h. */
static PyObject *token_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    (void)names;
    size_t count = nargsf & ~ARGUMENTS_OFFSET;
    return count == 0 ? incref(self) : token_leave((Token *)self, args[0]);
}

/* What `end` was given as `failed`; -1 and an exception if it was given anything else. */
static COLD int token_failed(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (count + named > 1
        || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "failed"))) {
        PyErr_SetString(PyExc_TypeError, "end() takes one argument, failed");
        return -1;
    }
    int failed = PyObject_IsTrue(args[0]);
    if (failed < 0)
        PyErr_Clear(); /* whatever it is, it does not say that all went well */
    return failed != 0;
}

static NEVER_INLINE PyObject *token_end_as(Token *self, PyObject *const *args, Py_ssize_t count,
                                           PyObject *names)
{
    int64_t end_ns = now();
    int failed = token_failed(args, count, names);
    if (failed < 0)
        return NULL;
    if (self->slots != NULL)
        token_close(self, failed ? -end_ns : end_ns);
    return incref(Py_None);
}

static PyObject *token_end(Token *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count > 0 || names != NULL)
        return token_end_as(self, args, count, names);
    if (self->slots != NULL)
        token_close(self, now());
    return incref(Py_None);
}

static PyObject *token_discard(Token *self, PyObject *unused)
{
    (void)unused;
    Slots *slots = self->slots;
    if (slots != NULL) {
        self->slots = NULL;
        put_definition(slots_at(slots, self->offset), 0);
        Py_DECREF(slots);
    }
    return incref(Py_None);
}

/* A thread of a library has a Python state only while it is in Python: each time one is made, with memory
   that the kernel maps and takes back, which interrupts the other threads. One more use keeps it. */
static void keep_python_state(void)
{
    static THREAD_LOCAL int kept;
    if (!kept) {
        kept = 1;
        (void)PyGILState_Ensure();
    }
}

/* Whether a future holds an error; -1 and an exception if that is none that a program catches. */
static int future_failed(PyObject *future)
{
    PyObject *value = call_method(future, "value", NULL, NULL, NULL);
    if (value != NULL) {
        Py_DECREF(value);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear(); /* PyTorch raises it where the program waits */
    return 1;
}

static PyObject *token_completed(Token *self, PyObject *future)
{
    int64_t end_ns = now();
    keep_python_state();
    int failed = future_failed(future);
    if (self->slots != NULL)
        token_close(self, failed ? -end_ns : end_ns);
    return failed < 0 ? NULL : incref(Py_None);
}

/* Python comes here where it does not use `call`. */
static PyObject *token_tp_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    return PyTuple_Size(args) > 0 ? token_leave((Token *)self, PyTuple_GetItem(args, 0)) : incref(self);
}

static PyMethodDef token_methods[] = {
    {"end", METHOD(token_end), METH_FASTCALL | METH_KEYWORDS,
     "end($self, /, failed=False)\n--\n\n"
     "Close the span, as failed if it ended by an exception; a second time does nothing."},
    {"completed", METHOD(token_completed), METH_O,
     "completed($self, future, /)\n--\n\n"
     "Close the span, as failed if `future` holds an error; a callback for it."},
    {"discard", METHOD(token_discard), METH_NOARGS,
     "discard($self, /)\n--\n\nMake as if it had never begun."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef token_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Token, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot token_slots[] = {
    {Py_tp_doc, "A span that has begun; `end` closes it, in any thread, and so does leaving it as a "
                "context."},
    {Py_tp_dealloc, token_dealloc},
    {Py_tp_call, token_tp_call},
    {Py_tp_methods, token_methods},
    {Py_tp_members, token_members},
    {0, NULL},
};

static PyType_Spec token_spec = {
    "tracelens_instrument.core.spans.Token", sizeof(Token), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, token_slots,
};
