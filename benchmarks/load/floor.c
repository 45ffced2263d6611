/* floor: what a broker cannot do without for Produce and Fetch requests of one batch, and nothing else.
 *
 * It receives a Produce request, reads the batch for its CRC32C, gives it its offset, writes it to the partition's file, and answers.
 * Files are begun anew at 1 GiB, and the full ones synced by a thread, as both brokers do. A Fetch request is answered by
 * sendfile out of the first file; all batches of a partition are taken to be of one size. What this costs is what no broker in any
 * language can be cheaper than.
 */
#include "wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_BYTES (8 << 20)
#define FILE_BYTES (1L << 30)
#define CRC_AT 21 /* of a batch: where what its checksum covers begins */
#define RECORD_COUNT_AT 57
#define PARTITIONS 4096

typedef struct {
    int descriptor, number;
    long written;
    uint64_t next_offset;
    size_t batch_bytes, batch_records; /* of the last batch */
} Partition;

static Partition partitions[PARTITIONS];
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

static void *sync_file(void *descriptor) {
    fdatasync((int)(intptr_t)descriptor);
    close((int)(intptr_t)descriptor);
    return NULL;
}

static Partition *partition_of(uint32_t index) {
    if (index >= PARTITIONS) fail("there are %d partitions at most", PARTITIONS);
    return partitions + index;
}

static void append(uint32_t index, char *batch, size_t count) {
    Partition *partition = partition_of(index);
    if (!partition->number || partition->written + (long)count > FILE_BYTES) {
        pthread_t thread;
        if (partition->number && !pthread_create(&thread, NULL, sync_file, (void *)(intptr_t)partition->descriptor)) pthread_detach(thread);
        char path[4096];
        snprintf(path, sizeof path, "%s/%u-%d.log", option("directory", "."), index, ++partition->number);
        partition->descriptor = open(path, O_RDWR | O_CREAT, 0600);
        if (partition->descriptor < 0) fail("%s cannot be made", path);
        partition->written = 0;
    }
    Buffer base_offset = {batch, 0};
    put_number(&base_offset, partition->next_offset, 8);
    if (pwrite(partition->descriptor, batch, count, partition->written) != (ssize_t)count) fail("a write was short");
    partition->written += (long)count;
    partition->batch_bytes = count;
    partition->batch_records = number_at(batch + RECORD_COUNT_AT, 4);
    partition->next_offset += partition->batch_records;
}

/* Receives so many bytes; whether they came. */
static int receive(int connection, char *bytes, size_t count) {
    return recv(connection, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

/* Version 8; `topic` is where the name's length stands, behind transactional id that is null, acks and timeout. */
static int produce(int connection, const char *request, char *topic) {
    size_t topic_bytes = 2 + number_at(topic, 2);
    char *batch = topic + topic_bytes + 4 + 4 + 4, text[512];
    size_t batch_bytes = number_at(batch - 4, 4);
    sum += checksum(batch + CRC_AT, batch_bytes - CRC_AT);
    append((uint32_t)number_at(batch - 8, 4), batch, batch_bytes);
    Buffer answer = {text, 0};
    put_number(&answer, 0, 4);
    put(&answer, request + 8, 4); /* correlation id */
    put_number(&answer, 1, 4);
    put(&answer, topic, topic_bytes);
    put_number(&answer, 1, 4);
    put(&answer, batch - 8, 4);
    put_number(&answer, 0, 2);
    put_number(&answer, 0, 8);
    put_number(&answer, -1, 8);
    put_number(&answer, 0, 8);
    put_number(&answer, 0, 4);  /* no record errors */
    put_number(&answer, -1, 2); /* no message */
    put_number(&answer, 0, 4);
    patch(&answer, 0, (uint32_t)answer.count - 4);
    return send(connection, text, answer.count, MSG_NOSIGNAL) == (ssize_t)answer.count;
}

/* Version 11; `topic` is where the name's length stands. */
static int fetch(int connection, const char *request, const char *topic) {
    size_t topic_bytes = 2 + number_at(topic, 2);
    const char *index = topic + topic_bytes + 4;
    Partition *partition = partition_of((uint32_t)number_at(index, 4));
    char text[512];
    Buffer answer = {text, 0};
    put_number(&answer, 0, 4);
    put(&answer, request + 8, 4); /* correlation id */
    put_number(&answer, 0, 4 + 2 + 4);
    put_number(&answer, 1, 4);
    put(&answer, topic, topic_bytes);
    put_number(&answer, 1, 4);
    put(&answer, index, 4);
    put_number(&answer, 0, 2);
    put_number(&answer, partition->next_offset, 8);
    put_number(&answer, partition->next_offset, 8);
    put_number(&answer, 0, 8);
    put_number(&answer, -1, 4); /* no aborted transactions */
    put_number(&answer, -1, 4); /* no other replica */
    put_number(&answer, partition->batch_bytes, 4);
    patch(&answer, 0, (uint32_t)(answer.count - 4 + partition->batch_bytes));
    if (send(connection, text, answer.count, MSG_NOSIGNAL | MSG_MORE) != (ssize_t)answer.count) return 0;
    off_t place = (off_t)(number_at(index + 8, 8) / partition->batch_records * partition->batch_bytes);
    for (size_t left = partition->batch_bytes; left;) {
        ssize_t sent = sendfile(connection, partition->descriptor, &place, left);
        if (sent <= 0) return 0;
        left -= sent;
    }
    return 1;
}

static void *serve(void *descriptor) {
    int connection = (int)(intptr_t)descriptor;
    char *request = malloc(REQUEST_BYTES);
    while (receive(connection, request, 4)) {
        size_t size = number_at(request, 4);
        if (size > REQUEST_BYTES - 4 || !receive(connection, request + 4, size)) break;
        size_t body = 14 + number_at(request + 12, 2); /* behind the client id */
        int is_fetch = number_at(request + 4, 2) == 1;
        if (!(is_fetch ? fetch(connection, request, request + body + 29) : produce(connection, request, request + body + 12))) break;
    }
    free(request);
    close(connection);
    return NULL;
}

/* floor directory=PATH: prints its port. Partitions are not locked: each is produced to by one connection. */
int command_floor(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 8)) fail("no port can be had");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (int connection; (connection = accept(listener, NULL, NULL)) >= 0;) {
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection)) fail("no thread can be had");
        pthread_detach(thread);
    }
    return 0;
}
