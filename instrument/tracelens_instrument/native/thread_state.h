/* A thread in a recording: its row in the thread table, and the spans that `with SPAN:` opened. */

/* `held` is the span's Slots, or the token of its fallback (offset -1). */
typedef struct {
    PyObject *span, *held;
    Py_ssize_t offset;
} Entry;

typedef struct {
    PyObject_HEAD
    unsigned int index;
    Entry *stack;
    Py_ssize_t depth, room;
} ThreadState;

static PyTypeObject *ThreadStateType;

/* Found without a call, where the C library has room for a few bytes of late comers (glibc has). */
#if defined(__x86_64__) && defined(__GLIBC__)
#define THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL __thread
#endif

/* Grows whenever a thread's state may have been replaced or freed behind its back. */
static unsigned long long epoch = 1;
static THREAD_LOCAL struct {
    ThreadState *thread_state; /* borrowed from STATE.local, valid while the epoch is the same */
    unsigned long long epoch;
} cached_thread;

static PyObject *thread_state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    unsigned int index;
    if (!PyArg_ParseTuple(args, "I:ThreadState", &index))
        return NULL;
    ThreadState *self = PyObject_New(ThreadState, type);
    if (self == NULL)
        return NULL;
    self->index = index;
    self->stack = NULL;
    self->depth = self->room = 0;
    return (PyObject *)self;
}

static void thread_state_dealloc(ThreadState *self)
{
    if (cached_thread.thread_state == self && cached_thread.epoch == epoch)
        cached_thread.epoch = 0;
    else
        epoch++; /* another thread may be the one that remembers it */
    while (self->depth > 0) {
        Entry entry = self->stack[--self->depth];
        Py_DECREF(entry.span);
        Py_DECREF(entry.held);
    }
    PyMem_Free(self->stack);
    free_object(self);
}

static COLD int thread_state_grow(ThreadState *self)
{
    Py_ssize_t room = self->room ? 2 * self->room : 16;
    Entry *stack = PyMem_Realloc(self->stack, room * sizeof(Entry));
    if (stack == NULL)
        return -1;
    self->stack = stack;
    self->room = room;
    return 0;
}

static inline int thread_state_make_room(ThreadState *self)
{
    return LIKELY(self->depth < self->room) ? 0 : thread_state_grow(self);
}

/* There is room: thread_state_make_room was called. */
static inline void thread_state_push(ThreadState *self, PyObject *span, PyObject *held, Py_ssize_t offset)
{
    Py_INCREF(span);
    Py_INCREF(held);
    self->stack[self->depth++] = (Entry){span, held, offset};
}

/* Take the latest entry of `span` from further down, as uses do not nest. */
static COLD int thread_state_pull(ThreadState *self, PyObject *span, Entry *entry)
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

static inline int thread_state_pop(ThreadState *self, PyObject *span, Entry *entry)
{
    if (UNLIKELY(self->depth == 0 || self->stack[self->depth - 1].span != span))
        return thread_state_pull(self, span, entry);
    *entry = self->stack[--self->depth];
    return 1;
}

static PyMemberDef thread_state_members[] = {
    {"index", T_UINT, offsetof(ThreadState, index), READONLY, "Row in the thread table."},
    {NULL, 0, 0, 0, NULL},
};

/* What the fallback in Python puts into its records: bytes 52 to 60. */
static PyObject *thread_state_block(ThreadState *self, void *unused)
{
    (void)unused;
    uint16_t block[] = {(uint16_t)self->index, UINT16_MAX, UINT16_MAX, 0};
    return PyBytes_FromStringAndSize((const char *)block, sizeof block);
}

static PyGetSetDef thread_state_getset[] = {
    {"block", (getter)thread_state_block, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot thread_state_slots[] = {
    {Py_tp_doc, "ThreadState(index)\n--\n\nA thread in a recording, and the spans it is inside of."},
    {Py_tp_new, thread_state_new},
    {Py_tp_dealloc, thread_state_dealloc},
    {Py_tp_members, thread_state_members},
    {Py_tp_getset, thread_state_getset},
    {0, NULL},
};

static PyType_Spec thread_state_spec = {
    "tracelens_instrument._native.ThreadState", sizeof(ThreadState), 0, Py_TPFLAGS_DEFAULT, thread_state_slots,
};
