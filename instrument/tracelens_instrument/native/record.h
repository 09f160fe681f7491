/* The record of 64 bytes: tracelens/schema/record.py says what it means. */

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

/* An open record that says nothing yet; without a definition it does not count. Copied as a whole: written field by
 * field, it takes twice as many stores. */
static inline void put_blank(Record *slot, int step, unsigned int thread)
{
    memcpy(slot, &BLANK, sizeof BLANK);
    slot->step = step;
    slot->thread = (uint16_t)thread;
}

/* The definition makes a slot a record, so it comes last: a process may be killed at any point. */
static inline void put_definition(Record *slot, uint32_t definition)
{
    __atomic_store_n(&slot->definition, definition, __ATOMIC_RELEASE);
}

static inline void put_end(Record *slot, int64_t end_ns)
{
    __atomic_store_n(&slot->end_ns, end_ns, __ATOMIC_RELEASE);
}
