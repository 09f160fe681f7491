/* What is said of one use of a span, written into its slot.
 *
 * All functions return 1, or 0 for what only the fallback can judge, and never set an exception. They run no Python
 * code, so that nobody else can take the slot meanwhile.
 */

/* The parameters of `begin`, in its order; `complete` has two times before and two flags after. */
enum { TRACK, NBYTES, SEQ, BUCKET, PEER, KEY, REQUEST, QUEUE_DEPTH, MICRO_STEP, STEP,
       BEGIN_COUNT, FAILED = BEGIN_COUNT, IS_ESTIMATED, NAME_COUNT };

static const char *const NAMES[NAME_COUNT] = {
    "track", "nbytes", "seq", "bucket", "peer", "key", "request", "queue_depth", "micro_step",
    "step", "failed", "estimated",
};
static PyObject *names_of[NAME_COUNT]; /* the same, interned */

typedef struct {
    Record *slot;
    int failed;
} Values;

static inline int take_signed(PyObject *value, int64_t lowest, int64_t highest, int64_t *number)
{
    if (UNLIKELY(!PyLong_CheckExact(value)) && !PyLong_Check(value))
        return 0;
    long long found = PyLong_AsLongLong(value);
    if (UNLIKELY(found == -1) && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *number = found;
    return found >= lowest && found <= highest;
}

static int take_u64(PyObject *value, uint64_t *number)
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

static int take_i64(PyObject *value, int64_t *number)
{
    return take_signed(value, INT64_MIN, INT64_MAX, number);
}

static int take_u32(PyObject *value, uint32_t *number)
{
    int64_t found;
    if (!take_signed(value, 0, UINT32_MAX, &found))
        return 0;
    *number = (uint32_t)found;
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

static int take_flag(PyObject *value, int *flag)
{
    *flag = value == Py_True;
    return value == Py_True || value == Py_False;
}

static int take_estimated(PyObject *value, uint16_t *flags)
{
    int estimated;
    if (!take_flag(value, &estimated))
        return 0;
    *flags = estimated ? ESTIMATED : 0;
    return 1;
}

static int take_value(Values *values, int which, PyObject *value)
{
    Record *slot = values->slot;
    switch (which) {
    case TRACK: return value == Py_None || take_u16(value, &slot->thread);
    case NBYTES: return take_i64(value, &slot->bytes);
    case SEQ: return take_u32(value, &slot->seq);
    case BUCKET: return take_i32(value, &slot->bucket);
    case PEER: return take_i32(value, &slot->peer);
    case KEY: return take_i32(value, &slot->key);
    case REQUEST: return take_u64(value, &slot->request);
    case QUEUE_DEPTH: return take_u16(value, &slot->queue_depth);
    case MICRO_STEP: return take_u16(value, &slot->micro_step);
    case STEP: return value == Py_None || take_i32(value, &slot->step);
    case FAILED: return take_flag(value, &values->failed);
    case IS_ESTIMATED: return take_estimated(value, &slot->flags);
    default: return 0;
    }
}

/* The names of a call stand in one tuple, a constant of the caller's code: it is read once. */
#define CACHED_CALLS 64
typedef struct {
    PyObject *names;
    int count;
    unsigned char which[NAME_COUNT];
} CallNames;
static CallNames cached_calls[CACHED_CALLS];

/* Names in a call are interned: one that is not found by its address is for the fallback to judge. */
static int which_name(PyObject *name)
{
    int which = 0;
    while (which < NAME_COUNT && names_of[which] != name)
        which++;
    return which;
}

static COLD const CallNames *cache_call_names(CallNames *known, PyObject *names)
{
    Py_ssize_t count = PyTuple_Size(names);
    if (count > NAME_COUNT)
        return NULL;
    CallNames found = {.names = names, .count = (int)count};
    for (int at = 0; at < count; at++) {
        int which = which_name(PyTuple_GetItem(names, at));
        if (which == NAME_COUNT)
            return NULL;
        found.which[at] = (unsigned char)which;
    }
    Py_INCREF(names);
    Py_XDECREF(known->names);
    *known = found;
    return known;
}

/* NULL if not all are names of ours. */
static inline const CallNames *call_names(PyObject *names)
{
    CallNames *known = &cached_calls[(uintptr_t)names / 16 % CACHED_CALLS];
    return LIKELY(known->names == names) ? known : cache_call_names(known, names);
}

/* Take values by name, which must be those from `first` to before `last`. */
static inline int take_named(Values *values, PyObject *const *args, PyObject *names, int first,
                             int last)
{
    if (names == NULL)
        return 1;
    const CallNames *known = call_names(names);
    if (UNLIKELY(known == NULL))
        return 0;
    for (int at = 0; at < known->count; at++) {
        int which = known->which[at];
        if (which < first || which >= last || !take_value(values, which, args[at]))
            return 0;
    }
    return 1;
}

/* Whether all names are those of parameters from `first` to before `last`, whatever the values. */
static int names_valid(PyObject *names, int first, int last)
{
    const CallNames *known = names ? call_names(names) : NULL;
    for (int at = 0; known != NULL && at < known->count; at++)
        if (known->which[at] < first || known->which[at] >= last)
            return 0;
    return names == NULL || known != NULL;
}

/* begin(track, nbytes, ..., step) */
static inline int take_begin(Values *values, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (UNLIKELY(count > BEGIN_COUNT))
        return 0;
    for (int which = 0; which < count; which++)
        if (!take_value(values, which, args[which]))
            return 0;
    return take_named(values, args + count, names, (int)count, BEGIN_COUNT);
}

/* complete(start_ns, end_ns, track=None, *, failed=, estimated=, values...) */
static int take_complete(Values *values, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Record *slot = values->slot;
    if (count < 2 || count > 3 || !take_i64(args[0], &slot->start_ns)
        || !take_signed(args[1], -INT64_MAX, INT64_MAX, &slot->end_ns) /* has a negative */
        || (count == 3 && !take_value(values, TRACK, args[2])))
        return 0;
    if (!take_named(values, args + count, names, count == 3 ? NBYTES : TRACK, NAME_COUNT))
        return 0;
    if (values->failed)
        slot->end_ns = -slot->end_ns;
    return 1;
}
