#include "files.h"
#include "wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES (1L << 30)
#define CRC_AT 21 /* of a batch: where what its checksum covers begins */
#define LAST_OFFSET_DELTA_AT 23

typedef struct {
    uint64_t offset;
    off_t place;
} Batch;

struct Partition {
    pthread_mutex_t lock;
    int number, descriptor, files;
    off_t written;
    uint64_t next_offset;
    Batch *batches; /* of the newest file */
    size_t batch_count, batch_room;
};

static volatile uint64_t sum; /* or the compiler leaves the checksums out */

/* Three lanes, as a fast CRC32C has them; to combine them takes next to nothing and is left out. */
#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint64_t checksum(const char *bytes, size_t count) {
    uint64_t lanes[3] = {~0u, 0, 0};
    size_t third = count / 24 * 8;
    for (size_t at = 0; at < third; at += 8)
        for (int lane = 0; lane < 3; lane++) {
            uint64_t word;
            memcpy(&word, bytes + lane * third + at, 8);
            lanes[lane] = __builtin_ia32_crc32di(lanes[lane], word);
        }
    return lanes[0] ^ lanes[1] ^ lanes[2];
}
#else
static uint64_t checksum(const char *bytes, size_t count) {
    (void)bytes, (void)count;
    fail("floor needs the CRC32 instruction of x86-64");
}
#endif

Partition *new_partitions(size_t count, int first_number) {
    Partition *partitions = calloc(count, sizeof *partitions);
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_init(&partitions[i].lock, NULL);
        partitions[i].number = first_number + (int)i;
    }
    return partitions;
}

Partition *partition_at(Partition *partitions, size_t index) { return partitions + index; }

uint64_t next_offset_of(Partition *partition) {
    pthread_mutex_lock(&partition->lock);
    uint64_t offset = partition->next_offset;
    pthread_mutex_unlock(&partition->lock);
    return offset;
}

static void *sync_file(void *descriptor) {
    fdatasync((int)(intptr_t)descriptor);
    close((int)(intptr_t)descriptor);
    return NULL;
}

static void begin_file(Partition *partition) {
    pthread_t thread;
    if (partition->files && !pthread_create(&thread, NULL, sync_file, (void *)(intptr_t)partition->descriptor)) pthread_detach(thread);
    char path[4096];
    snprintf(path, sizeof path, "%s/%d-%d.log", option("directory", "."), partition->number, ++partition->files);
    partition->descriptor = open(path, O_RDWR | O_CREAT, 0600);
    if (partition->descriptor < 0) fail("%s cannot be made", path);
    partition->written = 0;
    partition->batch_count = 0;
}

uint64_t append(Partition *partition, char *batch, size_t bytes) {
    sum += checksum(batch + CRC_AT, bytes - CRC_AT);
    pthread_mutex_lock(&partition->lock);
    if (!partition->files || partition->written + (off_t)bytes > FILE_BYTES) begin_file(partition);
    if (partition->batch_count == partition->batch_room) {
        partition->batch_room = partition->batch_room ? 2 * partition->batch_room : 64;
        partition->batches = realloc(partition->batches, partition->batch_room * sizeof *partition->batches);
    }
    uint64_t offset = partition->next_offset;
    Buffer base_offset = {batch, 0};
    put_number(&base_offset, offset, 8);
    if (pwrite(partition->descriptor, batch, bytes, partition->written) != (ssize_t)bytes) fail("a write was short");
    partition->batches[partition->batch_count++] = (Batch){offset, partition->written};
    partition->written += (off_t)bytes;
    partition->next_offset = offset + number_at(batch + LAST_OFFSET_DELTA_AT, 4) + 1;
    pthread_mutex_unlock(&partition->lock);
    return offset;
}

/* How many batches begin at or before that. */
static size_t batches_up_to(const Partition *partition, uint64_t offset) {
    size_t low = 0, high = partition->batch_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (partition->batches[middle].offset <= offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

Span span_from(Partition *partition, uint64_t offset, size_t most_bytes) {
    Span span = {0, 0, 0};
    pthread_mutex_lock(&partition->lock);
    if (offset < partition->next_offset) {
        size_t batch = batches_up_to(partition, offset);
        if (!batch) fail("offset %lu is in a file that was full", offset);
        span.descriptor = partition->descriptor;
        span.place = partition->batches[batch - 1].place;
        for (off_t end; batch <= partition->batch_count; batch++, span.bytes = (size_t)(end - span.place)) {
            end = batch < partition->batch_count ? partition->batches[batch].place : partition->written;
            if (span.bytes && end - span.place > (off_t)most_bytes) break;
        }
    }
    pthread_mutex_unlock(&partition->lock);
    return span;
}
