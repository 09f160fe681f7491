/* A thread in a recording: its row in the thread table, and the spans that `with SPAN:` opened. */

/* `held` is the span's Slots, or the token of its twin (offset -1). */
typedef struct {
    PyObject *span, *held;
    Py_ssize_t offset;
} Entry;

typedef struct {
    PyObject_HEAD
    unsigned int index;
    Entry *stack;
    Py_ssize_t depth, room;
} Here;

static PyTypeObject *HereType;

/* Found without a call, where the C library has room for a few bytes of late comers (glibc has). */
#if defined(__x86_64__) && defined(__GLIBC__)
#define OF_THREAD __thread __attribute__((tls_model("initial-exec")))
#else
#define OF_THREAD __thread
#endif

/* Grows whenever a thread's Here may have been replaced or freed behind its back. */
static unsigned long long epoch = 1;
static OF_THREAD struct {
    Here *here; /* borrowed from STATE.local, valid while the epoch is the same */
    unsigned long long epoch;
} mine;

static PyObject *here_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    unsigned int index;
    if (!PyArg_ParseTuple(args, "I:Here", &index))
        return NULL;
    Here *self = PyObject_New(Here, type);
    if (self == NULL)
        return NULL;
    self->index = index;
    self->stack = NULL;
    self->depth = self->room = 0;
    return (PyObject *)self;
}

static void here_dealloc(Here *self)
{
    if (mine.here == self && mine.epoch == epoch)
        mine.epoch = 0;
    else
        epoch++; /* another thread may be the one that remembers it */
    while (self->depth > 0) {
        Entry entry = self->stack[--self->depth];
        Py_DECREF(entry.span);
        Py_DECREF(entry.held);
    }
    PyMem_Free(self->stack);
    give_back(self);
}

static SELDOM int here_grow(Here *self)
{
    Py_ssize_t room = self->room ? 2 * self->room : 16;
    Entry *stack = PyMem_Realloc(self->stack, room * sizeof(Entry));
    if (stack == NULL)
        return -1;
    self->stack = stack;
    self->room = room;
    return 0;
}

static inline int here_make_room(Here *self)
{
    return LIKELY(self->depth < self->room) ? 0 : here_grow(self);
}

/* There is room: here_make_room was called. */
static inline void here_push(Here *self, PyObject *span, PyObject *held, Py_ssize_t offset)
{
    Py_INCREF(span);
    Py_INCREF(held);
    self->stack[self->depth++] = (Entry){span, held, offset};
}

/* Take the latest entry of `span` from further down, as uses do not nest. */
static SELDOM int here_pull(Here *self, PyObject *span, Entry *entry)
{
    Py_ssize_t at = self->depth - 1;
    while (at >= 0 && self->stack[at].span != span)
        at--;
    if (at < 0)
        return 0;
    *entry = self->stack[at];
    self->depth--;
    memmove(&self->stack[at], &self->stack[at + 1], (self->depth - at) * sizeof(Entry));
    return 1;
}

static inline int here_pop(Here *self, PyObject *span, Entry *entry)
{
    if (UNLIKELY(self->depth == 0 || self->stack[self->depth - 1].span != span))
        return here_pull(self, span, entry);
    *entry = self->stack[--self->depth];
    return 1;
}

static PyMemberDef here_members[] = {
    {"index", T_UINT, offsetof(Here, index), READONLY, "Row in the thread table."},
    {NULL, 0, 0, 0, NULL},
};

/* What the twin in Python puts into its records: bytes 52 to 60. */
static PyObject *here_block(Here *self, void *unused)
{
    (void)unused;
    uint16_t block[] = {(uint16_t)self->index, UINT16_MAX, UINT16_MAX, 0};
    return PyBytes_FromStringAndSize((const char *)block, sizeof block);
}

static PyGetSetDef here_getset[] = {
    {"block", (getter)here_block, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot here_slots[] = {
    {Py_tp_doc, "Here(index)\n--\n\nA thread in a recording, and the spans it is inside of."},
    {Py_tp_new, here_new},
    {Py_tp_dealloc, here_dealloc},
    {Py_tp_members, here_members},
    {Py_tp_getset, here_getset},
    {0, NULL},
};

static PyType_Spec here_spec = {
    "tracelens_instrument._native.Here", sizeof(Here), 0, Py_TPFLAGS_DEFAULT, here_slots,
};
