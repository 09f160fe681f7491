/* `__enter__` and `__exit__`, as `with` looks them up.
 *
 * `with` binds both to what it manages, which for methods makes two objects a span. So a span hands out functions
 * that it has made once, and a token itself: called without arguments it enters, called with those of `__exit__`
 * it leaves.
 */

enum { SPAN_ENTER, SPAN_LEAVE, TOKEN_ENTER, TOKEN_LEAVE };

typedef struct {
    PyObject_HEAD
    int what;
} Lookup;

static PyTypeObject *LookupType;

static PyObject *lookup_get(Lookup *self, PyObject *of, PyObject *type)
{
    (void)type;
    PyObject *found = of;
    if (UNLIKELY(of == NULL || of == Py_None))
        found = (PyObject *)self;
    else if (self->what == SPAN_ENTER)
        found = ((Span *)of)->enter;
    else if (self->what == SPAN_LEAVE)
        found = ((Span *)of)->leave;
    Py_XINCREF(found);
    return found;
}

/* Called through the class, with the instance first, as contextlib.ExitStack does. */
static PyObject *lookup_call(Lookup *self, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    Py_ssize_t count = PyTuple_Size(args);
    PyObject *of = count > 0 ? PyTuple_GetItem(args, 0) : NULL;
    PyObject *kind = count > 1 ? PyTuple_GetItem(args, 1) : Py_None;
    PyTypeObject *wanted = self->what <= SPAN_LEAVE ? SpanType : TokenType;
    if (of == NULL || Py_TYPE(of) != wanted) {
        PyErr_SetString(PyExc_TypeError, "a span or token is needed as the first argument");
        return NULL;
    }
    switch (self->what) {
    case SPAN_ENTER: return span_enter(of, NULL);
    case SPAN_LEAVE: return span_leave(of, &kind, 1);
    case TOKEN_ENTER: return incref(of);
    default: return token_leave((Token *)of, kind);
    }
}

static void lookup_dealloc(Lookup *self)
{
    free_object(self);
}

static PyType_Slot lookup_slots[] = {
    {Py_tp_dealloc, lookup_dealloc},
    {Py_tp_descr_get, lookup_get},
    {Py_tp_call, lookup_call},
    {0, NULL},
};

static PyType_Spec lookup_spec = {
    "tracelens_instrument._native.Lookup", sizeof(Lookup), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lookup_slots,
};

static int add_lookup(PyTypeObject *type, const char *name, int what)
{
    Lookup *lookup = PyObject_New(Lookup, LookupType);
    if (lookup == NULL)
        return -1;
    lookup->what = what;
    int added = PyObject_SetAttrString((PyObject *)type, name, (PyObject *)lookup);
    Py_DECREF(lookup);
    return added;
}
