/* The native recorder's clock on a simulated machine: counter and kernel are what the test says. */

#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#define LIKELY(condition) (condition)
#define UNLIKELY(condition) (condition)
#define COLD

uint64_t ticks;
int64_t ns;
uint64_t answer_ticks; /* what the kernel takes to answer */
uint64_t asked;        /* how often it was */

static uint64_t simulated_ticks(void)
{
    return ticks;
}

static void simulated_time(clockid_t clock, struct timespec *time)
{
    (void)clock;
    asked++;
    ticks += answer_ticks;
    ns += answer_ticks * 2 / 5;
    *time = (struct timespec){ns / 1000000000, ns % 1000000000};
}

#define __rdtsc simulated_ticks
#define clock_gettime simulated_time
#ifdef OTHER_PROCESSOR
#undef __x86_64__
#endif
#include "native/clock.h"

int64_t read_clock(void)
{
    return now();
}

void use(int usable)
{
    use_counter(usable);
}
