/* The floor's partitions: files of batches, and where each batch lies. */
#ifndef FILES_H
#define FILES_H

#include "load.h"

#include <stddef.h>
#include <sys/types.h>

typedef struct Partition Partition;

typedef struct {
    int descriptor;
    off_t place;
    size_t bytes;
} Span;

/* As many partitions as are asked for, without a file as yet; their files are called by the number that is given. */
Partition *new_partitions(size_t count, int first_number);
Partition *partition_at(Partition *partitions, size_t index);
uint64_t next_offset_of(Partition *partition);
/* Gives the batch its offset and writes it; the offset. */
uint64_t append(Partition *partition, char *batch, size_t bytes);
/* Whole batches from that offset on: so many bytes, or one batch. None at the end. */
Span span_from(Partition *partition, uint64_t offset, size_t most_bytes);

#endif
