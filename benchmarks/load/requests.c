/* requests: Produce requests on plain sockets and one epoll, so many connections with so many in flight on each.
 *
 * There is one request for each partition, made beforehand, and all are of one size. A connection sends them round and round:
 * what it has left to send is a number of bytes and a place in the round. Answers come in the order of the requests: the oldest
 * time of sending belongs to the next answer.
 */
#include "wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_BYTES 65536

typedef struct {
    int fd;
    size_t unsent, place; /* bytes that may be sent; where in the round the next of them is */
    double *sent_s;       /* a ring of times of sending, one for each request in flight */
    long sent, answered;
    size_t held; /* bytes of answers that are not a whole answer yet */
    char answers[ANSWER_BYTES];
} Connection;

static char *requests; /* the round, and its beginning once more, so that all that is in flight can go out by one send */
static size_t request_bytes, round_bytes, requests_bytes, error_at;
static long in_flight;

static uint32_t crc32c(const unsigned char *bytes, size_t count) {
    uint32_t crc = ~0u;
    while (count--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static int varint_bytes(long value) {
    char bytes[10];
    Buffer buffer = {bytes, 0};
    put_varint(&buffer, value);
    return (int)buffer.count;
}

/* A record batch of magic 2: `records` of `size` bytes each, without keys. */
static void put_batch(Buffer *buffer, long records, long size, long now_ms) {
    size_t start = buffer->count;
    put_number(buffer, 0, 8);  /* base offset */
    put_number(buffer, 0, 4);  /* batch length, below */
    put_number(buffer, -1, 4); /* partition leader epoch */
    put_number(buffer, 2, 1);  /* magic */
    put_number(buffer, 0, 4);  /* CRC, below */
    put_number(buffer, 0, 2);  /* attributes */
    put_number(buffer, records - 1, 4);
    put_number(buffer, now_ms, 8);
    put_number(buffer, now_ms, 8);
    put_number(buffer, -1, 8); /* producer id */
    put_number(buffer, -1, 2);
    put_number(buffer, -1, 4);
    put_number(buffer, records, 4);
    for (long i = 0; i < records; i++) {
        put_varint(buffer, 1 + 1 + varint_bytes(i) + 1 + varint_bytes(size) + size + 1);
        put_number(buffer, 0, 1); /* attributes */
        put_varint(buffer, 0);    /* timestamp delta */
        put_varint(buffer, i);
        buffer->bytes[buffer->count++] = 1; /* no key: length -1, zigzag */
        put_varint(buffer, size);
        memset(buffer->bytes + buffer->count, 'w', size);
        buffer->count += size;
        put_varint(buffer, 0); /* no headers */
    }
    patch(buffer, start + 8, (uint32_t)(buffer->count - start - 12));
    patch(buffer, start + 17, crc32c((unsigned char *)buffer->bytes + start + 21, buffer->count - start - 21));
}

static void put_request(Buffer *buffer, const char *topic, long partition, long records, long size, long now_ms) {
    size_t start = buffer->count;
    put_header(buffer, 0, 8); /* Produce 8, the last version before tagged fields */
    put_number(buffer, -1, 2); /* no transactional id */
    put_number(buffer, number("acks", 1), 2);
    put_number(buffer, 30000, 4);
    put_number(buffer, 1, 4);
    put_string(buffer, topic);
    put_number(buffer, 1, 4);
    put_number(buffer, partition, 4);
    size_t records_at = buffer->count;
    put_number(buffer, 0, 4);
    put_batch(buffer, records, size, now_ms);
    patch(buffer, records_at, (uint32_t)(buffer->count - records_at - 4));
    patch(buffer, start, (uint32_t)(buffer->count - start - 4));
}

static void build_requests(const char *topic, long partitions, long records, long size) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    Buffer buffer = {malloc((partitions + in_flight) * (1024 + records * (size + 32))), 0};
    for (long i = 0; i < partitions + in_flight; i++) {
        if (i < partitions) put_request(&buffer, topic, i, records, size, now.tv_sec * 1000L);
        else put(&buffer, buffer.bytes + (i - partitions) * request_bytes, request_bytes);
        if (i == 0) request_bytes = buffer.count;
    }
    requests = buffer.bytes;
    round_bytes = request_bytes * partitions;
    requests_bytes = buffer.count;
    error_at = 4 + 4 + 4 + 2 + strlen(topic) + 4 + 4; /* in the answer, with its frame size */
}

static void send_more(Connection *connection) {
    while (connection->unsent) {
        size_t most = requests_bytes - connection->place;
        ssize_t count = send(connection->fd, requests + connection->place, connection->unsent < most ? connection->unsent : most, MSG_NOSIGNAL);
        if (count < 0 && errno == EAGAIN) return;
        if (count < 0) fail("send: %s", strerror(errno));
        connection->unsent -= count;
        connection->place = (connection->place + count) % round_bytes;
    }
}

static void release(Connection *connection, long count, double now) {
    for (long i = 0; i < count; i++) connection->sent_s[connection->sent++ % in_flight] = now;
    connection->unsent += count * request_bytes;
    send_more(connection);
}

/* Reads once and counts whole answers. The socket is empty if that filled no buffer, so the next edge will be reported. */
static long read_answers(Connection *connection, double now, int *is_empty) {
    size_t most = ANSWER_BYTES - connection->held;
    ssize_t count = recv(connection->fd, connection->answers + connection->held, most, 0);
    *is_empty = count < (ssize_t)most;
    if (count < 0 && errno == EAGAIN) return 0;
    if (count <= 0) fail("the broker closed the connection: %s", count ? strerror(errno) : "end of stream");
    connection->held += count;
    size_t place = 0;
    long whole = 0;
    while (connection->held - place >= 4) {
        size_t length = number_at(connection->answers + place, 4) + 4;
        if (connection->held - place < length) break;
        int error = (int16_t)number_at(connection->answers + place + error_at, 2);
        if (error) fail("the broker answered error %d", error);
        latency_add(now - connection->sent_s[connection->answered++ % in_flight]);
        place += length;
        whole++;
    }
    memmove(connection->answers, connection->answers + place, connection->held - place);
    connection->held -= place;
    return whole;
}

static Connection *open_connections(int epoll, long count) {
    Connection *connections = calloc(count, sizeof *connections);
    for (long i = 0; i < count; i++) {
        Connection *connection = connections + i;
        connection->fd = connect_to(option("bootstrap", "127.0.0.1:9092"));
        connection->sent_s = calloc(in_flight, sizeof(double));
        connection->place = round_bytes / request_bytes * i / count * request_bytes;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = connection};
        epoll_ctl(epoll, EPOLL_CTL_ADD, connection->fd, &event);
    }
    return connections;
}

/* requests topic= connections=N in_flight=N records=N size=BYTES partitions=N acks= seconds=S warmup=S: Produce requests a second.
 * With count=N instead of seconds: until so many records are there, unmeasured. The time of sending is when the request may go out, so a broker that does not read makes its own latencies worse. */
int command_requests(void) {
    long connection_count = number("connections", 1), count = number("count", 0), answered = 0, records = number("records", 1);
    double warmup_s = number("warmup", 2), seconds = number("seconds", 5), started = now_s();
    int has_begun = 0, epoll = epoll_create1(0);
    in_flight = number("in_flight", 1);
    build_requests(option("topic", "load"), number("partitions", 1), records, number("size", 100));
    Connection *connections = open_connections(epoll, connection_count);
    for (long i = 0; i < connection_count; i++) release(connections + i, in_flight, now_s());
    while (count ? answered * records < count : !has_begun || begun_s() < seconds) {
        struct epoll_event events[256];
        int ready = epoll_wait(epoll, events, 256, 100);
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            double now = now_s();
            if (events[i].events & EPOLLOUT) send_more(connection);
            for (int is_empty = !(events[i].events & EPOLLIN); !is_empty;) {
                long whole = read_answers(connection, now, &is_empty);
                release(connection, whole, now);
                answered += whole;
            }
        }
        if (!count && !has_begun && now_s() - started >= warmup_s) {
            has_begun = 1;
            latency_clear();
            answered = 0;
            begin();
        }
    }
    if (!count)
        end("\"requests\": %ld, \"records\": %ld, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f", answered, answered * records,
            latency_ms(0.5), latency_ms(0.99), latency_ms(1));
    exit(0);
}
