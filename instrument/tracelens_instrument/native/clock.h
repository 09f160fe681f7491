/* The time: CLOCK_MONOTONIC in nanoseconds, called with the GIL held.
 *
 * Where the kernel takes it from the processor's time-stamp counter, so do we, between comparisons with
 * the kernel a few milliseconds apart. That costs half as much, as the kernel waits until all that
 * came before has been done; a time may therefore be some ten nanoseconds off. If a comparison shows
 * that the counter's pace has changed (NTP, suspension, a virtual machine that moves), the kernel's
 * clock serves until the new pace is known. Never is a time more than a few milliseconds away from
 * the comparison that it rests on, so a process cannot drift from others on its host.
 */

static int64_t kernel_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#ifdef __x86_64__
#include <x86intrin.h>

#define TRUSTED_NS 4000000       /* how long a comparison serves */
#define MEASURED_NS 20000000     /* over how much time the pace is measured at least, */
#define REMEMBERED_NS 1000000000 /* and at most */
#define AGREES_NS 500            /* and 20 ppm of the time since the latest comparison */
#define UNDISTURBED_TICKS 400    /* what the kernel may take to answer */
#define OTHER_CLOCK_NS 1000000   /* back by more than this: it is the clock of another time namespace */
#define SLOWEST ((uint64_t)1 << 35)
#define FASTEST ((uint64_t)1 << 28)

static struct {
    uint64_t ticks, trusted; /* of the latest comparison; after how many more it has to be repeated */
    int64_t ns, latest;
    uint64_t pace;           /* 2^-32 ns a tick */
    uint64_t since_ticks;    /* from when on the pace is measured */
    int64_t since_ns;
    int usable;
} counter;

static inline int64_t monotonic(int64_t ns)
{
    if (UNLIKELY(ns < counter.latest))
        return counter.latest;
    return counter.latest = ns;
}

static int agrees(uint64_t ticks, int64_t ns)
{
    int64_t elapsed = (int64_t)((unsigned __int128)(ticks - counter.ticks) * counter.pace >> 32);
    int64_t off = counter.ns + elapsed - ns;
    int64_t most = AGREES_NS + (ns - counter.ns) / 50000;
    return -most <= off && off <= most;
}

static void measure_pace(uint64_t ticks, int64_t elapsed_ns)
{
    counter.pace = ((uint64_t)elapsed_ns << 32) / (ticks - counter.since_ticks);
    int plausible = FASTEST < counter.pace && counter.pace < SLOWEST;
    counter.trusted = plausible ? ((uint64_t)TRUSTED_NS << 32) / counter.pace : 0;
}

/* The kernel says that it was `ns` at `ticks`. */
static void compare(uint64_t ticks, int64_t ns)
{
    int64_t elapsed_ns = ns - counter.since_ns;
    int changed = counter.trusted && !agrees(ticks, ns);
    if (changed)
        counter.trusted = 0;
    else if (MEASURED_NS <= elapsed_ns && elapsed_ns <= REMEMBERED_NS)
        measure_pace(ticks, elapsed_ns);
    if (changed || elapsed_ns > REMEMBERED_NS) {
        counter.since_ticks = ticks;
        counter.since_ns = ns;
    }
    counter.ticks = ticks;
    counter.ns = ns;
}

static COLD int64_t now_from_kernel(void)
{
    if (!counter.usable)
        return kernel_now();
    uint64_t before = __rdtsc();
    int64_t ns = kernel_now();
    uint64_t took = __rdtsc() - before;
    if (took < UNDISTURBED_TICKS)
        compare(before + took / 2, ns);
    if (ns < counter.latest - OTHER_CLOCK_NS)
        counter.latest = ns;
    return monotonic(ns);
}

static inline int64_t now(void)
{
    uint64_t ticks = __rdtsc() - counter.ticks;
    if (LIKELY(ticks < counter.trusted))
        return monotonic(counter.ns + (int64_t)(ticks * counter.pace >> 32));
    return now_from_kernel();
}

static void use_counter(int usable)
{
    memset(&counter, 0, sizeof counter);
    counter.usable = usable;
}

#else

static inline int64_t now(void)
{
    return kernel_now();
}

static void use_counter(int usable)
{
    (void)usable;
}

#endif
