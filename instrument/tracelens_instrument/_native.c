/* The hot path of the recorder: what `span_in_python.py` does, in C, into the same records.
 *
 * Only what happens in nearly every span is here. Whatever is unusual (nothing has been recorded yet,
 * the segment is full or a sink, a value is no integer or does not fit) is handed to the span's twin
 * in Python before anything has been written, so that both recorders cannot differ in it.
 *
 * Everything below relies on the GIL: a slot is taken and written without giving it up.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Stable since Python 3.12 and the same before, but not in 3.11's limited headers. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))

typedef PyObject *(*Call)(PyObject *, PyObject *const *, size_t, PyObject *);

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* ---- The record: tracelens/schema/record.py says what it means ------------------------------- */

typedef struct {
    int64_t start_ns, end_ns, bytes;
    uint64_t request;
    uint32_t seq;
    int32_t step, key, bucket, peer;
    uint16_t thread, micro_step, queue_depth, flags;
    uint32_t definition;
} Record;

_Static_assert(sizeof(Record) == 64, "a record is 64 bytes");
_Static_assert(offsetof(Record, definition) == 60, "the definition is the last field");

#define ESTIMATED 1

static const Record BLANK = {
    .bytes = -1, .seq = UINT32_MAX, .step = -1, .key = -1, .bucket = -1, .peer = -1,
    .micro_step = UINT16_MAX, .queue_depth = UINT16_MAX,
};

static inline int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The definition makes a slot a record, so it comes last: a process may be killed at any point. */
static inline void put_definition(char *slot, uint32_t definition)
{
    __atomic_store_n((uint32_t *)(slot + offsetof(Record, definition)), definition, __ATOMIC_RELEASE);
}

/* Field by field: a block copy would have to wait for the fields that were written just before. */
static inline void put_values(char *slot, const Record *from)
{
    Record *to = (Record *)slot;
    to->bytes = from->bytes;
    to->request = from->request;
    to->seq = from->seq;
    to->step = from->step;
    to->key = from->key;
    to->bucket = from->bucket;
    to->peer = from->peer;
    to->thread = from->thread;
    to->micro_step = from->micro_step;
    to->queue_depth = from->queue_depth;
    to->flags = from->flags;
}

static inline void put_start(char *slot, int64_t start_ns)
{
    ((Record *)slot)->start_ns = start_ns;
}

static inline void put_end(char *slot, int64_t end_ns)
{
    __atomic_store_n((int64_t *)(slot + offsetof(Record, end_ns)), end_ns, __ATOMIC_RELEASE);
}

/* ---- Types ------------------------------------------------------------------------------------ */

/* The slots of a segment; an iterator, for the parts of the recorder that are in Python. */
typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    char *base;
    Py_ssize_t next, end;
} Slots;

/* A span that `with SPAN:` opened. `held` is its Slots, or the token of its twin (offset -1). */
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

typedef struct {
    PyObject_HEAD
    PyObject *segment, *waiting, *recording, *local, *blank;
    Slots *slots; /* those of `segment`, if they are ours */
    int step;
} Fields;

typedef struct {
    PyObject_HEAD
    Call call;
    Slots *slots; /* NULL once it has ended */
    Py_ssize_t offset;
} Token;

typedef struct {
    PyObject_HEAD
    Call call;
    PyObject *enter, *leave, *twin;
    unsigned int definition;
} Span;

/* `__enter__` and `__exit__`, as `with` looks them up: see "Looking up", below. */
typedef struct {
    PyObject_HEAD
    int what;
} Lookup;

static PyTypeObject *SlotsType, *HereType, *FieldsType, *TokenType, *SpanType, *LookupType;

static Fields *state;     /* tracelens_instrument.state.STATE */
static PyObject *twin;    /* makes the Python span of a definition */
static PyObject *again;   /* makes what pickles a span, from its definition */
static PyObject *arrive;  /* enters this thread into the thread table of a segment's recording */
static PyObject *nothing; /* the token of what is not recorded */

/* Grows whenever a thread's Here may have been replaced or freed behind its back. */
static unsigned long long epoch;
static __thread struct {
    Here *here; /* borrowed from STATE.local, valid while the epoch is the same */
    unsigned long long epoch;
} mine;

static void set(PyObject **where, PyObject *value)
{
    PyObject *before = *where;
    Py_XINCREF(value);
    *where = value;
    Py_XDECREF(before);
}

static PyObject *itself(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

/* Free an object of a heap type, which holds a reference to its type. */
static void give_back(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void collect(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- Slots ------------------------------------------------------------------------------------ */

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
    give_back(self);
}

static int slots_left(const Slots *self)
{
    return self->next < self->end;
}

static Py_ssize_t slots_take(Slots *self)
{
    Py_ssize_t offset = self->next;
    self->next += sizeof(Record);
    return offset;
}

static PyObject *slots_next(Slots *self)
{
    return slots_left(self) ? PyLong_FromSsize_t(slots_take(self)) : NULL;
}

static PyObject *slots_length_hint(Slots *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSsize_t((self->end - self->next) / (Py_ssize_t)sizeof(Record));
}

static PyMethodDef slots_methods[] = {
    {"__length_hint__", METHOD(slots_length_hint), METH_NOARGS, "How many are left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots_slots[] = {
    {Py_tp_doc, "Slots(memory)\n--\n\nOffsets of the records that fit into `memory`, each once."},
    {Py_tp_new, slots_new},
    {Py_tp_dealloc, slots_dealloc},
    {Py_tp_iter, itself},
    {Py_tp_iternext, slots_next},
    {Py_tp_methods, slots_methods},
    {0, NULL},
};

static PyType_Spec slots_spec = {
    "tracelens_instrument._native.Slots", sizeof(Slots), 0, Py_TPFLAGS_DEFAULT, slots_slots,
};

/* ---- Here ------------------------------------------------------------------------------------- */

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
    if (mine.here == self)
        mine.here = NULL;
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

static int here_make_room(Here *self)
{
    if (self->depth < self->room)
        return 0;
    Py_ssize_t room = self->room ? 2 * self->room : 16;
    Entry *stack = PyMem_Realloc(self->stack, room * sizeof(Entry));
    if (stack == NULL)
        return -1;
    self->stack = stack;
    self->room = room;
    return 0;
}

/* There is room: here_make_room was called. */
static void here_push(Here *self, PyObject *span, PyObject *held, Py_ssize_t offset)
{
    Py_INCREF(span);
    Py_INCREF(held);
    self->stack[self->depth++] = (Entry){span, held, offset};
}

/* Take the latest entry of `span`, which is the last one unless uses do not nest. */
static int here_pop(Here *self, PyObject *span, Entry *entry)
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

static PyMemberDef here_members[] = {
    {"index", T_UINT, offsetof(Here, index), READONLY, "Row in the thread table."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot here_slots[] = {
    {Py_tp_doc, "Here(index)\n--\n\nA thread in a recording, and the spans it is inside of."},
    {Py_tp_new, here_new},
    {Py_tp_dealloc, here_dealloc},
    {Py_tp_members, here_members},
    {0, NULL},
};

static PyType_Spec here_spec = {
    "tracelens_instrument._native.Here", sizeof(Here), 0, Py_TPFLAGS_DEFAULT, here_slots,
};

/* ---- Fields ----------------------------------------------------------------------------------- */

static PyObject *fields_get_segment(Fields *self, void *unused)
{
    (void)unused;
    PyObject *segment = self->segment ? self->segment : Py_None;
    Py_INCREF(segment);
    return segment;
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
    set(&self->segment, segment);
    Py_XDECREF(before);
    return 0;
}

static PyObject *fields_get_local(Fields *self, void *unused)
{
    (void)unused;
    PyObject *local = self->local ? self->local : Py_None;
    Py_INCREF(local);
    return local;
}

static int fields_set_local(Fields *self, PyObject *local, void *unused)
{
    (void)unused;
    epoch++;
    set(&self->local, local);
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
    Py_CLEAR(self->slots);
    return 0;
}

static void fields_dealloc(Fields *self)
{
    PyObject_GC_UnTrack(self);
    fields_clear(self);
    collect(self);
}

static PyMemberDef fields_members[] = {
    {"waiting", T_OBJECT, offsetof(Fields, waiting), 0, NULL},
    {"recording", T_OBJECT, offsetof(Fields, recording), 0, NULL},
    {"blank", T_OBJECT, offsetof(Fields, blank), 0, NULL},
    {"step", T_INT, offsetof(Fields, step), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef fields_getset[] = {
    {"segment", (getter)fields_get_segment, (setter)fields_set_segment, NULL, NULL},
    {"local", (getter)fields_get_local, (setter)fields_set_local, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "The state that spans read, as tracelens_instrument.state.State describes it."},
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

/* ---- The calling thread ----------------------------------------------------------------------- */

/* Remember what STATE.local holds for this thread; NULL if that is nothing, or no longer so. */
static Here *remember(PyObject *found, unsigned long long since)
{
    if (found == NULL)
        return NULL;
    if (Py_TYPE(found) == HereType) {
        mine.here = (Here *)found;
        mine.epoch = since;
    }
    Py_DECREF(found); /* if nobody else holds it, it has just forgotten itself */
    return mine.epoch == epoch ? mine.here : NULL;
}

/* This thread's Here if it has one; NULL, without an exception, if not. */
static Here *here_known(void)
{
    if (mine.here != NULL && mine.epoch == epoch)
        return mine.here;
    mine.here = NULL;
    if (state->local == NULL)
        return NULL;
    unsigned long long since = epoch;
    PyObject *found = PyObject_GetAttrString(state->local, "here");
    if (found == NULL)
        PyErr_Clear();
    return remember(found, since);
}

/* This thread's Here, made if need be; NULL, perhaps with an exception, if nothing records. */
static Here *here_now(void)
{
    Here *here = here_known();
    PyObject *segment = state->segment;
    if (here != NULL || segment == NULL)
        return here;
    unsigned long long since = epoch;
    Py_INCREF(segment);
    PyObject *found = PyObject_CallFunctionObjArgs(arrive, segment, NULL);
    Py_DECREF(segment);
    return remember(found, since);
}

/* ---- Tokens ----------------------------------------------------------------------------------- */

static PyObject *token_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* Tokens come and go with every span: the memory of the last few is kept. */
#define SPARE_TOKENS 32
static Token *spare_tokens[SPARE_TOKENS];
static int spare_count;

static Token *token_new(void)
{
    Token *self = spare_count > 0
        ? (Token *)PyObject_Init((PyObject *)spare_tokens[--spare_count], TokenType)
        : PyObject_New(Token, TokenType);
    if (self != NULL) {
        self->call = token_call;
        self->slots = NULL;
        self->offset = 0;
    }
    return self;
}

static void token_dealloc(Token *self)
{
    Py_XDECREF((PyObject *)self->slots);
    if (spare_count == SPARE_TOKENS) {
        give_back(self);
        return;
    }
    spare_tokens[spare_count++] = self;
    Py_DECREF((PyObject *)TokenType); /* PyObject_Init takes it again */
}

static void token_close(Token *self, int64_t end_ns)
{
    Slots *slots = self->slots;
    if (slots == NULL)
        return;
    self->slots = NULL;
    put_end(slots->base + self->offset, end_ns);
    Py_DECREF(slots);
}

static PyObject *token_leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t end_ns = now();
    token_close((Token *)self, count > 0 && args[0] != Py_None ? -end_ns : end_ns);
    Py_RETURN_NONE;
}

static PyObject *token_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    (void)names;
    Py_ssize_t count = nargsf & ~ARGUMENTS_OFFSET;
    return count == 0 ? itself(self) : token_leave(self, args, count);
}

/* What `end` was given as `failed`; -1 and an exception if it was given anything else. */
static int token_failed(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (count + named == 0)
        return 0;
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

static PyObject *token_end(Token *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    int64_t end_ns = now();
    int failed = token_failed(args, count, names);
    if (failed < 0)
        return NULL;
    token_close(self, failed ? -end_ns : end_ns);
    Py_RETURN_NONE;
}

static PyObject *token_discard(Token *self, PyObject *unused)
{
    (void)unused;
    Slots *slots = self->slots;
    if (slots != NULL) {
        self->slots = NULL;
        put_definition(slots->base + self->offset, 0);
        Py_DECREF(slots);
    }
    Py_RETURN_NONE;
}

/* Python comes here where it does not use `call`. */
static PyObject *token_tp_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *kind = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL;
    return kind ? token_leave(self, &kind, 1) : itself(self);
}

static PyMethodDef token_methods[] = {
    {"end", METHOD(token_end), METH_FASTCALL | METH_KEYWORDS,
     "end($self, /, failed=False)\n--\n\n"
     "Close the span, as failed if it ended by an exception; a second time does nothing."},
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
    "tracelens_instrument.span.Token", sizeof(Token), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, token_slots,
};

/* ---- Values of a span -------------------------------------------------------------------------- */

/* The parameters of `begin`, in its order; `complete` has two times before and two flags after. */
enum { TRACK, NBYTES, SEQ, BUCKET, PEER, KEY, REQUEST, QUEUE_DEPTH, MICRO_STEP, STEP,
       BEGIN_COUNT, FAILED = BEGIN_COUNT, IS_ESTIMATED, START_NS, END_NS, NAME_COUNT };

static const char *const NAMES[NAME_COUNT] = {
    "track", "nbytes", "seq", "bucket", "peer", "key", "request", "queue_depth", "micro_step",
    "step", "failed", "estimated", "start_ns", "end_ns",
};
static PyObject *names_of[NAME_COUNT]; /* the same, interned */

typedef struct {
    Record record;
    int on_track, failed;
} Values;

/* All that follow return 1, or 0 for what only the twin can handle; never an exception. */

static int take_signed(PyObject *value, int64_t lowest, int64_t highest, int64_t *number)
{
    if (!PyLong_Check(value))
        return 0;
    long long found = PyLong_AsLongLong(value);
    if (found == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *number = found;
    return found >= lowest && found <= highest;
}

static int take_request(PyObject *value, uint64_t *number)
{
    if (!PyLong_Check(value))
        return 0;
    *number = PyLong_AsUnsignedLongLong(value);
    if (*number == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

static int take_i32(PyObject *value, int32_t *number)
{
    int64_t found;
    if (!take_signed(value, INT32_MIN, INT32_MAX, &found))
        return 0;
    *number = (int32_t)found;
    return 1;
}

static int take_u16(PyObject *value, uint16_t *number)
{
    int64_t found;
    if (!take_signed(value, 0, UINT16_MAX, &found))
        return 0;
    *number = (uint16_t)found;
    return 1;
}

static int take_u32(PyObject *value, uint32_t *number)
{
    int64_t found;
    if (!take_signed(value, 0, UINT32_MAX, &found))
        return 0;
    *number = (uint32_t)found;
    return 1;
}

static int take_flag(PyObject *value, int *flag)
{
    *flag = value == Py_True;
    return value == Py_True || value == Py_False;
}

static int take_track(Values *values, PyObject *value)
{
    values->on_track = value != Py_None;
    return !values->on_track || take_u16(value, &values->record.thread);
}

static int take_estimated(Values *values, PyObject *value)
{
    int estimated;
    if (!take_flag(value, &estimated))
        return 0;
    values->record.flags = estimated ? ESTIMATED : 0;
    return 1;
}

static int take_value(Values *values, int which, PyObject *value)
{
    Record *record = &values->record;
    switch (which) {
    case TRACK: return take_track(values, value);
    case NBYTES: return take_signed(value, INT64_MIN, INT64_MAX, &record->bytes);
    case SEQ: return take_u32(value, &record->seq);
    case BUCKET: return take_i32(value, &record->bucket);
    case PEER: return take_i32(value, &record->peer);
    case KEY: return take_i32(value, &record->key);
    case REQUEST: return take_request(value, &record->request);
    case QUEUE_DEPTH: return take_u16(value, &record->queue_depth);
    case MICRO_STEP: return take_u16(value, &record->micro_step);
    case STEP: return value == Py_None || take_i32(value, &record->step);
    case FAILED: return take_flag(value, &values->failed);
    case IS_ESTIMATED: return take_estimated(values, value);
    case START_NS: return take_signed(value, INT64_MIN, INT64_MAX, &record->start_ns);
    /* Its negative is needed, too. */
    case END_NS: return take_signed(value, -INT64_MAX, INT64_MAX, &record->end_ns);
    default: return 0;
    }
}

/* Names in a call are interned: one that is not found by its address is for the twin to judge. */
static int which_name(PyObject *name)
{
    int which = 0;
    while (which < NAME_COUNT && names_of[which] != name)
        which++;
    return which;
}

static int take_named(Values *values, PyObject *const *args, PyObject *names, int first, int last)
{
    Py_ssize_t count = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        int which = which_name(PyTuple_GetItem(names, at));
        if (which < first || which >= last || !take_value(values, which, args[at]))
            return 0;
    }
    return 1;
}

/* Whether all names are those of parameters from `first` to before `last`, whatever the values. */
static int acceptable(PyObject *names, int first, int last)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t at = 0; at < named; at++) {
        int which = which_name(PyTuple_GetItem(names, at));
        if (which < first || which >= last)
            return 0;
    }
    return 1;
}

static void values_init(Values *values)
{
    values->record = BLANK;
    values->record.step = state->step;
    values->on_track = values->failed = 0;
}

static int take_begin(Values *values, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    values_init(values);
    if (count > BEGIN_COUNT)
        return 0;
    for (int which = 0; which < count; which++)
        if (!take_value(values, which, args[which]))
            return 0;
    return take_named(values, args + count, names, (int)count, BEGIN_COUNT);
}

/* complete(start_ns, end_ns, track=None, *, failed=, estimated=, values...) */
static int take_complete(Values *values, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    values_init(values);
    if (count < 2 || count > 3)
        return 0;
    if (!take_value(values, START_NS, args[0]) || !take_value(values, END_NS, args[1])
        || (count == 3 && !take_value(values, TRACK, args[2])))
        return 0;
    if (!take_named(values, args + count, names, count == 3 ? NBYTES : TRACK, START_NS))
        return 0;
    if (values->failed)
        values->record.end_ns = -values->record.end_ns;
    return 1;
}

/* ---- Spans ------------------------------------------------------------------------------------- */

static int recording(void)
{
    return state->segment != NULL || (state->waiting != NULL && state->waiting != Py_None);
}

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
    for (Py_ssize_t at = 0; found != NULL && at < count; at++) {
        Py_INCREF(args[at]);
        if (PyTuple_SetItem(found, at, args[at]) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *span_twin(Span *self)
{
    if (self->twin == NULL) {
        PyObject *made = PyObject_CallFunction(twin, "I", self->definition);
        if (made == NULL)
            return NULL;
        set(&self->twin, made);
        Py_DECREF(made);
    }
    return self->twin;
}

/* Let the twin do it, whatever it was. */
static PyObject *slowly(Span *self, const char *name, PyObject *const *args, Py_ssize_t count,
                        PyObject *names)
{
    PyObject *of = span_twin(self);
    PyObject *method = of ? PyObject_GetAttrString(of, name) : NULL;
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

static PyObject *not_recorded(void)
{
    return itself(nothing);
}

/* Say which thread it is; 0 if recording has ended meanwhile, -1 for an exception. */
static int locate(Values *values)
{
    if (values->on_track)
        return 1;
    Here *here = here_now();
    if (here == NULL)
        return PyErr_Occurred() ? -1 : 0;
    values->record.thread = (uint16_t)here->index;
    return 1;
}

static PyObject *span_begin(Span *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Values values;
    if (!recording() && count <= BEGIN_COUNT && acceptable(names, (int)count, BEGIN_COUNT))
        return not_recorded();
    if (state->slots == NULL || !take_begin(&values, args, count, names))
        return slowly(self, "begin", args, count, names);
    int located = locate(&values);
    if (located <= 0)
        return located < 0 ? NULL : not_recorded();
    Slots *slots = state->slots;
    if (slots == NULL || !slots_left(slots))
        return slowly(self, "begin", args, count, names);
    Token *token = token_new();
    if (token == NULL) {
        PyErr_Clear();
        return not_recorded();
    }
    Py_INCREF((PyObject *)slots);
    token->slots = slots;
    token->offset = slots_take(slots);
    char *slot = slots->base + token->offset;
    put_values(slot, &values.record);
    put_start(slot, now());
    put_definition(slot, self->definition);
    return (PyObject *)token;
}

static PyObject *span_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return span_begin((Span *)self, args, nargsf & ~ARGUMENTS_OFFSET, names);
}

static PyObject *span_complete(Span *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Values values;
    if (!recording() && (count == 2 || count == 3) && acceptable(names, (int)count - 2, START_NS))
        Py_RETURN_NONE;
    if (state->slots == NULL || !take_complete(&values, args, count, names))
        return slowly(self, "complete", args, count, names);
    int located = locate(&values);
    if (located < 0)
        return NULL;
    Slots *slots = state->slots;
    if (!located || slots == NULL || !slots_left(slots))
        return slowly(self, "complete", args, count, names);
    char *slot = slots->base + slots_take(slots);
    put_values(slot, &values.record);
    put_start(slot, values.record.start_ns);
    put_end(slot, values.record.end_ns);
    put_definition(slot, self->definition);
    Py_RETURN_NONE;
}

/* Enter through the twin's token, and keep that; what is not recorded is not kept. */
static PyObject *enter_slowly(Span *self)
{
    PyObject *token = slowly(self, "begin", NULL, 0, NULL);
    if (token == NULL)
        return NULL;
    Here *here = state->segment ? here_known() : NULL;
    if (here != NULL && here_make_room(here) == 0)
        here_push(here, (PyObject *)self, token, -1);
    Py_DECREF(token);
    return itself((PyObject *)self);
}

static PyObject *span_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!recording())
        return itself(self);
    if (state->slots == NULL)
        return enter_slowly((Span *)self);
    Here *here = here_now();
    if (here == NULL)
        return PyErr_Occurred() ? NULL : itself(self);
    Slots *slots = state->slots;
    if (slots == NULL || !slots_left(slots))
        return enter_slowly((Span *)self);
    if (here_make_room(here) < 0)
        return itself(self);
    Record record = BLANK;
    record.step = state->step;
    record.thread = (uint16_t)here->index;
    Py_ssize_t offset = slots_take(slots);
    here_push(here, self, (PyObject *)slots, offset);
    char *slot = slots->base + offset;
    put_values(slot, &record);
    put_start(slot, now());
    put_definition(slot, ((Span *)self)->definition);
    return itself(self);
}

static int close_entry(const Entry *entry, int failed, int64_t end_ns)
{
    if (entry->offset >= 0) {
        put_end(((Slots *)entry->held)->base + entry->offset, failed ? -end_ns : end_ns);
        return 0;
    }
    PyObject *done = PyObject_CallMethod(entry->held, "end", "O", failed ? Py_True : Py_False);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *span_leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t end_ns = now();
    Here *here = state->segment ? here_known() : NULL;
    Entry entry;
    if (here == NULL || !here_pop(here, self, &entry))
        Py_RETURN_NONE; /* it was entered before recording began */
    int closed = close_entry(&entry, count > 0 && args[0] != Py_None, end_ns);
    Py_DECREF(entry.span);
    Py_DECREF(entry.held);
    if (closed < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef enter_def = {"__enter__", span_enter, METH_NOARGS, "Begin a span."};
static PyMethodDef leave_def = {"__exit__", METHOD(span_leave), METH_FASTCALL, "End it."};

static PyObject *span_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *parameters[] = {"definition", NULL};
    unsigned int definition;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I:Span", parameters, &definition))
        return NULL;
    if (state == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "make spans through tracelens.span");
        return NULL;
    }
    Span *self = PyObject_GC_New(Span, type);
    if (self == NULL)
        return NULL;
    self->call = span_call;
    self->definition = definition;
    self->twin = NULL;
    self->enter = PyCFunction_NewEx(&enter_def, (PyObject *)self, NULL);
    self->leave = PyCFunction_NewEx(&leave_def, (PyObject *)self, NULL);
    PyObject_GC_Track(self);
    if (self->enter == NULL || self->leave == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int span_traverse(Span *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->enter);
    Py_VISIT(self->leave);
    Py_VISIT(self->twin);
    return 0;
}

static int span_clear(Span *self)
{
    Py_CLEAR(self->enter);
    Py_CLEAR(self->leave);
    Py_CLEAR(self->twin);
    return 0;
}

static void span_dealloc(Span *self)
{
    PyObject_GC_UnTrack(self);
    span_clear(self);
    collect(self);
}

static PyObject *span_reduce(Span *self, PyObject *unused)
{
    (void)unused;
    return PyObject_CallFunction(again, "I", self->definition);
}

static PyObject *span_tp_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *begin = PyObject_GetAttrString(self, "begin");
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
    "tracelens_instrument.span.Span", sizeof(Span), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, span_slots,
};

/* ---- Looking up -------------------------------------------------------------------------------- */

/* `with` binds `__enter__` and `__exit__` to what it manages, which for methods makes two objects a
 * span. So a span hands out functions that it has made once, and a token itself: called without
 * arguments it enters, called with those of `__exit__` it leaves. */
enum { SPAN_ENTER, SPAN_LEAVE, TOKEN_ENTER, TOKEN_LEAVE };

static PyObject *lookup_get(Lookup *self, PyObject *of, PyObject *type)
{
    (void)type;
    PyObject *found = of;
    if (of == NULL || of == Py_None)
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
    case TOKEN_ENTER: return itself(of);
    default: return token_leave(of, &kind, 1);
    }
}

static void lookup_dealloc(Lookup *self)
{
    give_back(self);
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

/* ---- The module -------------------------------------------------------------------------------- */

static PyObject *install(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *parameters[] = {"state", "twin", "again", "arrive", NULL};
    PyObject *given[4];
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO:install", parameters, FieldsType, &given[0],
                                     &given[1], &given[2], &given[3]))
        return NULL;
    set(&twin, given[1]);
    set(&again, given[2]);
    set(&arrive, given[3]);
    set((PyObject **)&state, given[0]);
    Py_RETURN_NONE;
}

static PyObject *redirect(PyObject *module, PyObject *args)
{
    PyObject *slots, *memory;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:redirect", &slots, &memory))
        return NULL;
    if (Py_TYPE(slots) == SlotsType && slots_attach((Slots *)slots, memory) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"install", METHOD(install), METH_VARARGS | METH_KEYWORDS,
     "install(state, twin, again, arrive)\n--\n\nConnect with the parts that are in Python; once."},
    {"redirect", redirect, METH_VARARGS,
     "redirect(slots, memory)\n--\n\nSend whatever is still written through `slots` to `memory`."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddObjectRef(module, name, (PyObject *)*type) : -1;
}

static int add_types(PyObject *module)
{
    if (add_type(module, "Slots", &slots_spec, &SlotsType) < 0
        || add_type(module, "Here", &here_spec, &HereType) < 0
        || add_type(module, "Fields", &fields_spec, &FieldsType) < 0
        || add_type(module, "Token", &token_spec, &TokenType) < 0
        || add_type(module, "Span", &span_spec, &SpanType) < 0
        || add_type(module, "Lookup", &lookup_spec, &LookupType) < 0)
        return -1;
    if (add_lookup(SpanType, "__enter__", SPAN_ENTER) < 0
        || add_lookup(SpanType, "__exit__", SPAN_LEAVE) < 0
        || add_lookup(TokenType, "__enter__", TOKEN_ENTER) < 0
        || add_lookup(TokenType, "__exit__", TOKEN_LEAVE) < 0)
        return -1;
    return 0;
}

/* One interpreter of a process can use it, once: what it remembers is not kept apart. */
static int execute(PyObject *module)
{
    static int used;
    if (used) {
        PyErr_SetString(PyExc_ImportError, "it is already in use in this process");
        return -1;
    }
    used = 1;
    for (int which = 0; which < NAME_COUNT; which++) {
        names_of[which] = PyUnicode_InternFromString(NAMES[which]);
        if (names_of[which] == NULL)
            return -1;
    }
    if (add_types(module) < 0)
        return -1;
    nothing = (PyObject *)token_new();
    return nothing ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracelens_instrument._native",
    .m_doc = "The hot path of the recorder, in C; see tracelens_instrument.backend.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
