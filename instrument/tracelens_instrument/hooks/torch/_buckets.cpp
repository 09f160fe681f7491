/* Reductions of gradient buckets that are known, seen without Python's dispatch.

   A kernel before the one of operations.py: it begins a bucket's span, hands the operator on to what is
   below that one, and ends the span when the work's future is complete. All else is handed on to it: what
   is no bucket, a bucket that is met for the first time, and whatever Python code asks for. */

#include <Python.h>

#include <optional>
#include <unordered_map>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/* A buffer that DistributedDataParallel reduces a bucket in, and what begins the bucket's span. */
struct Bucket {
    Weak buffer; /* while this is held, no other tensor has its address */
    PyObject *begin, *track, *nbytes, *next_seq;
};

std::unordered_map<const c10::TensorImpl *, Bucket> buckets;
std::optional<torch::Library> kernel;
constexpr auto KEY = c10::DispatchKey::ADInplaceOrView;
const c10::DispatchKeySet BELOW(c10::DispatchKeySet::FULL_AFTER, KEY);
const c10::DispatchKeySet BELOW_PYTHON(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);

/* What `configure` was given: the recorder's state, communication hooks that run, codes that call
   DistributedDataParallel without a frame of its own, what is called with the first bucket of a backward
   pass, and where the number of the next one is: negative before the first. */
PyObject *state, *running, *engine, *first_issued;
Py_buffer next_bucket;
PyObject *SEGMENT, *WAITING, *END, *NAMES; /* interned */

class Gil {
  public:
    Gil() : state(PyGILState_Ensure()) {}
    ~Gil() { PyGILState_Release(state); }
    Gil(const Gil &) = delete;
    Gil &operator=(const Gil &) = delete;

  private:
    PyGILState_STATE state;
};

bool is_set(PyObject *name)
{
    PyObject *value = PyObject_GetAttr(state, name);
    const bool set = value != nullptr && value != Py_None;
    if (value == nullptr)
        PyErr_Clear();
    Py_XDECREF(value);
    return set;
}

[[noreturn]] void raise()
{
    python_error raised;
    raised.persist();
    throw raised;
}

bool called_by_the_engine()
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == nullptr)
        return true;
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool found = false;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(engine); place++)
        found |= PyTuple_GET_ITEM(engine, place) == reinterpret_cast<PyObject *>(code);
    Py_DECREF(code);
    return found;
}

/* To ask Python costs more than all the rest, as its code has gone from the processor's memory meanwhile. */
PyObject *number_of_bucket()
{
    auto *next = static_cast<int64_t *>(next_bucket.buf);
    return *next < 0 ? PyObject_CallNoArgs(first_issued) : PyLong_FromLongLong((*next)++);
}

PyObject *begin(const Bucket &bucket)
{
    PyObject *number = number_of_bucket();
    PyObject *seq = number == nullptr ? nullptr : PyObject_CallNoArgs(bucket.next_seq);
    PyObject *token = nullptr;
    if (seq != nullptr) {
        PyObject *args[] = {bucket.track, bucket.nbytes, seq, number};
        token = PyObject_Vectorcall(bucket.begin, args, 1, NAMES);
    }
    Py_XDECREF(number);
    Py_XDECREF(seq);
    return token;
}

/* Return a token for a known bucket; null for what the kernel in Python is to see. */
PyObject *begun(const c10::IValue &payload)
{
    const auto tensors = payload.toTensorList();
    if (tensors.size() != 1)
        return nullptr;
    const at::Tensor buffer = tensors.get(0);
    const auto known = buckets.find(buffer.unsafeGetTensorImpl());
    if (known == buckets.end() || PyList_GET_SIZE(running) || !called_by_the_engine()
        || (!is_set(SEGMENT) && !is_set(WAITING)))
        return nullptr;
    PyObject *token = begin(known->second);
    if (token == nullptr) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            raise(); /* a signal handler's, such as KeyboardInterrupt */
        PyErr_Clear(); /* the kernel in Python warns, if it happens there as well */
    }
    return token;
}

void end(PyObject *token, bool failed)
{
    PyObject *done = PyObject_CallMethodObjArgs(token, END, failed ? Py_True : nullptr, nullptr);
    if (done == nullptr)
        PyErr_Clear();
    Py_XDECREF(done);
    Py_DECREF(token);
}

/* A thread of a library has a Python state only while it is in Python; one more use keeps it (token.h). */
void keep_python_state()
{
    static thread_local bool kept = false;
    if (!kept) {
        kept = true;
        (void)PyGILState_Ensure();
    }
}

/* Return the future of what an operator returned; null where there is none, which is no harm here. */
c10::intrusive_ptr<c10::ivalue::Future> future_of(const c10::IValue &result)
{
    try {
        return result.toCustomClass<c10d::Work>()->getFuture();
    } catch (const std::exception &) {
        return {};
    }
}

void end_with(PyObject *token, const c10::IValue &result)
{
    const auto future = future_of(result);
    if (!future) {
        const Gil gil;
        end(token, false);
        return;
    }
    future->addCallback(
        [token](c10::ivalue::Future &done) {
            if (!Py_IsInitialized())
                return;
            const bool failed = done.hasError();
            const Gil gil;
            keep_python_state();
            end(token, failed);
        },
        /*uses_future=*/false);
}

void reduce(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack)
{
    const auto first = stack->size() - op.schema().arguments().size();
    PyObject *token = nullptr;
    {
        const Gil gil;
        token = begun((*stack)[first]);
    }
    if (token == nullptr) {
        op.redispatchBoxed(keys & BELOW, stack);
        return;
    }
    try {
        op.redispatchBoxed(keys & BELOW_PYTHON, stack);
    } catch (...) {
        const Gil gil;
        end(token, true);
        throw;
    }
    end_with(token, stack->back());
}

PyObject *configure(PyObject *, PyObject *args)
{
    PyObject *given[4];
    Py_buffer next;
    if (!PyArg_ParseTuple(args, "OO!O!Ow*", &given[0], &PyList_Type, &given[1], &PyTuple_Type, &given[2], &given[3],
            &next))
        return nullptr;
    if (next.len != sizeof(int64_t)) {
        PyBuffer_Release(&next);
        PyErr_SetString(PyExc_ValueError, "expected the memory of one number of 8 bytes");
        return nullptr;
    }
    PyBuffer_Release(&next_bucket);
    next_bucket = next;
    PyObject **places[] = {&state, &running, &engine, &first_issued};
    for (int place = 0; place < 4; place++)
        Py_XSETREF(*places[place], Py_NewRef(given[place]));
    Py_RETURN_NONE;
}

/* Forget buckets of models that are no more. */
void forget_expired()
{
    for (auto known = buckets.begin(); known != buckets.end();) {
        auto &[buffer, begin, track, nbytes, next_seq] = known->second;
        if (buffer.expired()) {
            for (PyObject *one : {begin, track, nbytes, next_seq})
                Py_DECREF(one);
            known = buckets.erase(known);
        } else {
            ++known;
        }
    }
}

PyObject *remember(PyObject *, PyObject *args)
{
    PyObject *buffer, *begin, *track, *nbytes, *next_seq;
    if (!PyArg_ParseTuple(args, "OOOOO", &buffer, &begin, &track, &nbytes, &next_seq))
        return nullptr;
    if (!THPVariable_Check(buffer)) {
        PyErr_SetString(PyExc_TypeError, "expected a tensor");
        return nullptr;
    }
    forget_expired();
    const auto tensor = THPVariable_Unpack(buffer).getIntrusivePtr();
    if (buckets.try_emplace(tensor.get(), Bucket{Weak(tensor), begin, track, nbytes, next_seq}).second)
        for (PyObject *one : {begin, track, nbytes, next_seq})
            Py_INCREF(one);
    Py_RETURN_NONE;
}

PyObject *resume(PyObject *, PyObject *)
{
    if (!kernel) {
        kernel.emplace(torch::Library::IMPL, "c10d", KEY, __FILE__, __LINE__);
        kernel->impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&reduce>());
    }
    Py_RETURN_NONE;
}

PyObject *suspend(PyObject *, PyObject *)
{
    kernel.reset();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "configure(state, running, engine, first_issued, next_bucket)"},
    {"remember", remember, METH_VARARGS, "remember(buffer, begin, track, nbytes, next_seq)"},
    {"resume", resume, METH_NOARGS, "See buckets from now on."},
    {"suspend", suspend, METH_NOARGS, "See none until `resume`."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_buckets", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__buckets()
{
    SEGMENT = PyUnicode_InternFromString("segment");
    WAITING = PyUnicode_InternFromString("waiting");
    END = PyUnicode_InternFromString("end");
    /* Interned as well: by others the recorder in C would have the one in Python begin the span. */
    NAMES = Py_BuildValue("(NNN)", PyUnicode_InternFromString("nbytes"), PyUnicode_InternFromString("seq"),
        PyUnicode_InternFromString("bucket"));
    if (SEGMENT == nullptr || WAITING == nullptr || END == nullptr || NAMES == nullptr)
        return nullptr;
    return PyModule_Create(&definition);
}
