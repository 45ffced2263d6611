/* floor: what a broker cannot do without for a Produce request of one batch, and nothing else.
 *
 * It receives a request, reads the batch for its CRC32C, writes it to a file, and answers. Files are begun anew at 1 GiB, and the full ones
 * synced by a thread, as both brokers do. What this costs is what no broker in any language can be cheaper than.
 */
#include "load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUEST_BYTES (8 << 20)
#define FILE_BYTES (1L << 30)
#define CRC_AT 21 /* of a batch: where what its checksum covers begins */

static int file = -1, files;
static long written;

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

static void append(const char *batch, size_t count) {
    if (file < 0 || written + (long)count > FILE_BYTES) {
        pthread_t thread;
        if (file >= 0 && !pthread_create(&thread, NULL, sync_file, (void *)(intptr_t)file)) pthread_detach(thread);
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.log", option("directory", "."), files++);
        file = open(path, O_RDWR | O_CREAT, 0600);
        if (file < 0) fail("%s cannot be made", path);
        written = 0;
    }
    if (pwrite(file, batch, count, written) != (ssize_t)count) fail("a write was short");
    written += (long)count;
}

/* Receives so many bytes; whether they came. */
static int receive(int connection, char *bytes, size_t count) {
    return recv(connection, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

static uint32_t uint32_at(const char *bytes) {
    uint32_t value;
    memcpy(&value, bytes, 4);
    return ntohl(value);
}

/* A request of version 7: header, transactional id that is null, acks, timeout, one topic, one partition, the batch. */
static void serve(int connection, char *request) {
    volatile uint64_t read = 0;
    while (receive(connection, request, 4)) {
        uint32_t size = uint32_at(request);
        if (size > REQUEST_BYTES - 4 || !receive(connection, request + 4, size)) break;
        size_t name = 14 + (uint8_t)request[13] + 2 + 2 + 4 + 4; /* behind the client id, whose length is in one byte here */
        size_t name_bytes = 2 + (uint8_t)request[name + 1], batch = name + name_bytes + 4 + 4 + 4;
        uint32_t batch_bytes = uint32_at(request + batch - 4);
        read += checksum(request + batch + CRC_AT, batch_bytes - CRC_AT);
        append(request + batch, batch_bytes);
        char answer[512] = {0};
        size_t behind = 4 + 4 + 4 + name_bytes, whole = behind + 4 + 4 + 2 + 8 + 8 + 8 + 4;
        answer[3] = (char)(whole - 4);
        memcpy(answer + 4, request + 8, 4);
        answer[11] = answer[behind + 3] = 1;
        memcpy(answer + 12, request + name, name_bytes);
        if (send(connection, answer, whole, MSG_NOSIGNAL) != (ssize_t)whole) break;
    }
    close(connection);
}

int command_floor(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 8)) fail("no port can be had");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    char *request = malloc(REQUEST_BYTES);
    for (int connection; (connection = accept(listener, NULL, NULL)) >= 0;) {
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        serve(connection, request);
    }
    return 0;
}
