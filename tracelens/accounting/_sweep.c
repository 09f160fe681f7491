/* Cuts a thread's time into pieces, as `sweep.py` does in numpy: one pass over all moments at which anything changes.
 *
 * What is handed in has been cut to the windows and sorted there. Nothing of Python is used while it is gone
 * through, so that other threads run meanwhile.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REVISION 3 /* of what both parts expect of each other, as in sweep.py */

/* The order of `CATEGORIES`, and codes that stand beside them, as in categories.py. */
enum { USER = 6, WAIT, PS_QUEUE, TRANSFER, IDLE, UNINSTRUMENTED, CATEGORY_COUNT };
enum { NOTHING = -1, COMMUNICATION = 100, QUEUED = 200 };

/* What may cover a piece of time, whatever the thread does. */
enum { WAITS, QUEUES, FLIES, STOPS, HAS_CAUSE, COVER_COUNT };

#define NEVER INT64_MAX
#define VIEWS 27

/* Sorted moments, of which the next one is at `place`. */
typedef struct {
    const int64_t *moments;
    Py_ssize_t count, place;
} Edges;

/* Spans, outer ones before inner ones. Each has a level: how many others are open when it begins. */
typedef struct {
    Edges begins, ends; /* ends are sorted for themselves */
    const int64_t *end; /* of each span */
    const int16_t *code;
    const int32_t *name;
    int32_t *latest; /* of each level the span that began last */
    Py_ssize_t top;  /* no higher level is active */
} Spans;

typedef struct {
    int code, user;
    int32_t name;
} Innermost;

typedef struct {
    int64_t *bounds;
    int32_t *step;
    int8_t *category;
    int32_t *name;
    int64_t *spent, *hidden;
    Py_ssize_t count;
} Pieces;

static inline int64_t next_of(const Edges *edges)
{
    return edges->place < edges->count ? edges->moments[edges->place] : NEVER;
}

static inline int64_t earlier(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Pass what lies at or before `now`. */
static inline void pass(Edges *edges, int64_t now)
{
    while (edges->place < edges->count && edges->moments[edges->place] <= now)
        edges->place++;
}

/* Return whether any began or ended: if not, what was innermost still is. */
static int begin_spans(Spans *spans, int64_t now)
{
    Py_ssize_t passed = spans->begins.place + spans->ends.place;
    pass(&spans->ends, now);
    for (; next_of(&spans->begins) <= now; spans->begins.place++) {
        Py_ssize_t level = spans->begins.place - spans->ends.place;
        if (level < 0)
            level = 0;
        while (spans->top < level)
            spans->latest[++spans->top] = NOTHING;
        spans->latest[level] = (int32_t)spans->begins.place;
    }
    return spans->begins.place + spans->ends.place != passed;
}

/* Say which span is innermost from `now` on: of those that are no user code, unless there are no others. */
static Innermost innermost(Spans *spans, int64_t now)
{
    Innermost found = {NOTHING, 0, NOTHING};
    int named = 0;
    for (Py_ssize_t level = spans->top; level >= 0; level--) {
        int32_t span = spans->latest[level];
        if (span < 0 || spans->end[span] <= now) {
            spans->latest[level] = NOTHING;
            if (level == spans->top)
                spans->top--;
            continue;
        }
        if (!named) {
            found.name = spans->name[span];
            named = 1;
        }
        if (spans->code[span] == USER)
            found.user = 1;
        else if (found.code == NOTHING)
            found.code = spans->code[span];
    }
    return found;
}

static void add(Pieces *pieces, int64_t begin, int64_t end, int32_t step, int category, int32_t name)
{
    Py_ssize_t last = pieces->count - 1;
    pieces->spent[(int64_t)step * CATEGORY_COUNT + category] += end - begin;
    if (last >= 0 && pieces->step[last] == step && pieces->category[last] == category && pieces->name[last] == name)
        return;
    pieces->bounds[pieces->count] = begin;
    pieces->step[pieces->count] = step;
    pieces->category[pieces->count] = (int8_t)category;
    pieces->name[pieces->count] = name;
    pieces->count++;
}

static int category_of(const Innermost *thread, const int *covered)
{
    int split = covered[WAITS] ? WAIT : covered[QUEUES] ? PS_QUEUE : TRANSFER;
    if (thread->code >= QUEUED)
        return covered[FLIES] ? split : thread->code - QUEUED;
    if (thread->code == COMMUNICATION)
        return split;
    if (thread->code != NOTHING)
        return thread->code;
    if (thread->user)
        return USER;
    return covered[FLIES] && covered[STOPS] ? split : covered[HAS_CAUSE] ? IDLE : UNINSTRUMENTED;
}

/* Return whether all is well: a code that is none ends it. */
static int sweep(const Edges *windows, Spans *thread, Edges *covers, Spans *device, Pieces *pieces)
{
    const int64_t last = windows->moments[windows->count - 1];
    int64_t now = windows->moments[0];
    int32_t step = 0;
    int covered[COVER_COUNT] = {0};
    Innermost own = {NOTHING, 0, NOTHING}, on_device = own;
    while (now < last) {
        int64_t next = last;
        while (step + 2 < windows->count && windows->moments[step + 1] <= now)
            step++;
        next = earlier(next, windows->moments[step + 1]);
        for (int which = 0; which < COVER_COUNT; which++) {
            Edges *begins = &covers[2 * which], *ends = begins + 1;
            if (begins->count == 0)
                continue;
            pass(begins, now);
            pass(ends, now);
            covered[which] = begins->place > ends->place;
            next = earlier(next, earlier(next_of(begins), next_of(ends)));
        }
        if (begin_spans(thread, now))
            own = innermost(thread, now);
        if (begin_spans(device, now))
            on_device = innermost(device, now);
        next = earlier(next, earlier(next_of(&thread->begins), next_of(&thread->ends)));
        next = earlier(next, earlier(next_of(&device->begins), next_of(&device->ends)));
        if (next <= now)
            return 0;

        int category = category_of(&own, covered);
        int32_t name = own.code >= QUEUED && covered[FLIES] ? NOTHING : own.name;
        if (on_device.code != NOTHING || on_device.user) {
            category = on_device.code != NOTHING ? on_device.code : USER;
            name = on_device.name;
        }
        if (category < 0 || category >= CATEGORY_COUNT)
            return 0;
        if (covered[FLIES] && (category <= USER || category == UNINSTRUMENTED))
            pieces->hidden[step] += next - now;
        add(pieces, now, next, step, category, name);
        now = next;
    }
    pieces->bounds[pieces->count] = last;
    return 1;
}

/* The arrays of a call: borrowed for as long as it takes. */
typedef struct {
    Py_buffer views[VIEWS];
    int count;
} Arrays;

static void give_back(Arrays *arrays)
{
    while (arrays->count > 0)
        PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* Borrow the next array of an iterator; return its memory, and put its length into `count` or hold it to that. */
static void *borrow(Arrays *arrays, PyObject *given, Py_ssize_t place, size_t size, int flags, Py_ssize_t *count)
{
    PyObject *array = PyTuple_GetItem(given, place);
    Py_buffer *view = &arrays->views[arrays->count];
    if (array == NULL || PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | flags) < 0)
        return NULL;
    arrays->count++;
    Py_ssize_t length = view->len / (Py_ssize_t)size;
    if (view->itemsize != (Py_ssize_t)size || (*count >= 0 && length < *count)) {
        PyErr_Format(PyExc_ValueError, "array %zd is of another type, or too short", place);
        return NULL;
    }
    if (*count < 0)
        *count = length;
    return view->buf;
}

static int borrow_edges(Arrays *arrays, PyObject *given, Py_ssize_t place, Edges *edges)
{
    edges->count = -1;
    edges->place = 0;
    edges->moments = borrow(arrays, given, place, sizeof(int64_t), 0, &edges->count);
    return edges->moments ? 0 : -1;
}

static int borrow_spans(Arrays *arrays, PyObject *given, Py_ssize_t place, Spans *spans)
{
    if (borrow_edges(arrays, given, place, &spans->begins) < 0
        || borrow_edges(arrays, given, place + 1, &spans->ends) < 0)
        return -1;
    Py_ssize_t count = spans->begins.count;
    spans->end = borrow(arrays, given, place + 2, sizeof(int64_t), 0, &count);
    spans->code = spans->end ? borrow(arrays, given, place + 3, sizeof(int16_t), 0, &count) : NULL;
    spans->name = spans->code ? borrow(arrays, given, place + 4, sizeof(int32_t), 0, &count) : NULL;
    if (spans->name == NULL)
        return -1;
    if (count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a thread has too many spans");
        return -1;
    }
    spans->top = -1;
    spans->latest = malloc(((size_t)count + 1) * sizeof(int32_t));
    if (spans->latest == NULL)
        PyErr_NoMemory();
    return spans->latest ? 0 : -1;
}

static int borrow_pieces(Arrays *arrays, PyObject *given, Py_ssize_t most, Py_ssize_t steps, Pieces *pieces)
{
    Py_ssize_t bounds = most + 1, cells = steps * CATEGORY_COUNT;
    pieces->count = 0;
    pieces->bounds = borrow(arrays, given, 0, sizeof(int64_t), PyBUF_WRITABLE, &bounds);
    pieces->step = pieces->bounds ? borrow(arrays, given, 1, sizeof(int32_t), PyBUF_WRITABLE, &most) : NULL;
    pieces->category = pieces->step ? borrow(arrays, given, 2, sizeof(int8_t), PyBUF_WRITABLE, &most) : NULL;
    pieces->name = pieces->category ? borrow(arrays, given, 3, sizeof(int32_t), PyBUF_WRITABLE, &most) : NULL;
    pieces->spent = pieces->name ? borrow(arrays, given, 4, sizeof(int64_t), PyBUF_WRITABLE, &cells) : NULL;
    pieces->hidden = pieces->spent ? borrow(arrays, given, 5, sizeof(int64_t), PyBUF_WRITABLE, &steps) : NULL;
    return pieces->hidden ? 0 : -1;
}

static PyObject *cut(PyObject *module, PyObject *args)
{
    PyObject *given, *room, *result = NULL;
    Arrays arrays = {.count = 0};
    Edges windows, covers[2 * COVER_COUNT];
    Spans thread = {.latest = NULL}, device = {.latest = NULL};
    Pieces pieces;
    int ended = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!:cut", &PyTuple_Type, &given, &PyTuple_Type, &room))
        return NULL;
    if (borrow_edges(&arrays, given, 0, &windows) < 0 || borrow_spans(&arrays, given, 1, &thread) < 0
        || borrow_spans(&arrays, given, 6, &device) < 0)
        goto done;
    Py_ssize_t most = windows.count + 2 * (thread.begins.count + device.begins.count);
    for (int which = 0; which < 2 * COVER_COUNT; which++) {
        if (borrow_edges(&arrays, given, 11 + which, &covers[which]) < 0)
            goto done;
        most += covers[which].count;
    }
    if (windows.count < 2 || windows.count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there are no steps, or too many");
        goto done;
    }
    if (borrow_pieces(&arrays, room, most, windows.count - 1, &pieces) < 0)
        goto done;
    Py_BEGIN_ALLOW_THREADS
    ended = sweep(&windows, &thread, covers, &device, &pieces);
    Py_END_ALLOW_THREADS
    if (ended)
        result = PyLong_FromSsize_t(pieces.count);
    else
        PyErr_SetString(PyExc_ValueError, "times are not in order, or a code is none");
done:
    free(thread.latest);
    free(device.latest);
    give_back(&arrays);
    return result;
}

static PyMethodDef functions[] = {
    {"cut", cut, METH_VARARGS, "cut(given, room)\n--\n\nFill `room` with pieces, and return how many they are."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    return PyModule_AddIntConstant(module, "REVISION", REVISION);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracelens.accounting._sweep",
    .m_doc = "The pass over a thread's time, in C; see tracelens.accounting.sweep.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__sweep(void)
{
    return PyModuleDef_Init(&definition);
}
