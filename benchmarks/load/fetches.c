/* fetches: Fetch requests on plain sockets, one in flight on each, as a consumer of librdkafka asks them: version 11, 1 MiB a partition.
 *
 * Answers are received, and the headers of their batches read for the next offset; no record is looked at. Behind the last
 * offset the consumer begins at the first one again.
 */
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define MOST_BYTES (1 << 20) /* of one partition in one answer, if its first batch is not larger */
#define ANSWER_BYTES (4 << 20)
#define HEADER_BYTES 61 /* of a batch */

typedef struct {
    int fd;
    uint64_t offset;
    size_t held;
    char answer[ANSWER_BYTES];
} Consumer;

static long records, bytes;

static void ask(Consumer *consumer, const char *topic) {
    char text[1024];
    Buffer buffer = {text, 0};
    put_header(&buffer, 1, 11);
    put_number(&buffer, -1, 4); /* no replica */
    put_number(&buffer, 500, 4);
    put_number(&buffer, 1, 4);
    put_number(&buffer, 50 << 20, 4);
    put_number(&buffer, 0, 1); /* uncommitted ones too */
    put_number(&buffer, 0, 4); /* no session */
    put_number(&buffer, -1, 4);
    put_number(&buffer, 1, 4);
    put_string(&buffer, topic);
    put_number(&buffer, 1, 4);
    put_number(&buffer, 0, 4);
    put_number(&buffer, -1, 4); /* no leader epoch */
    put_number(&buffer, consumer->offset, 8);
    put_number(&buffer, -1, 8);
    put_number(&buffer, MOST_BYTES, 4);
    put_number(&buffer, 0, 4); /* nothing forgotten */
    put_string(&buffer, "");
    patch(&buffer, 0, (uint32_t)buffer.count - 4);
    if (send(consumer->fd, text, buffer.count, MSG_NOSIGNAL) != (ssize_t)buffer.count) fail("send: %s", strerror(errno));
}

/* Reads the answer: where the consumer goes on, and how many records it has got. */
static void take(Consumer *consumer, size_t topic_bytes) {
    const char *at = consumer->answer + 4 + 4 + 4; /* size, correlation id, throttle time */
    if (number_at(at, 2)) fail("the broker answered error %d", (int)(int16_t)number_at(at, 2));
    at += 2 + 4 + 4 + 2 + topic_bytes + 4 + 4; /* session, topics, partitions, index */
    if (number_at(at, 2)) fail("the broker answered error %d", (int)(int16_t)number_at(at, 2));
    uint64_t high_watermark = number_at(at + 2, 8);
    at += 2 + 8 + 8 + 8;
    if ((int32_t)number_at(at, 4) > 0) fail("there are aborted transactions");
    size_t left = number_at(at + 8, 4), taken = 0;
    at += 12;
    while (left >= HEADER_BYTES && left >= 12 + number_at(at + 8, 4)) {
        size_t size = 12 + number_at(at + 8, 4);
        consumer->offset = number_at(at, 8) + number_at(at + 23, 4) + 1;
        records += (long)number_at(at + 57, 4);
        at += size;
        left -= size;
        taken += size;
    }
    if (!taken) fail("an answer without a batch at offset %lu of %lu", consumer->offset, high_watermark);
    bytes += (long)taken;
    if (consumer->offset >= high_watermark) consumer->offset = 0;
}

static void receive(Consumer *consumer, const char *topic) {
    ssize_t count;
    while ((count = recv(consumer->fd, consumer->answer + consumer->held, ANSWER_BYTES - consumer->held, MSG_DONTWAIT)) > 0) {
        consumer->held += count;
        if (consumer->held < 4) continue;
        size_t size = 4 + number_at(consumer->answer, 4);
        if (size > ANSWER_BYTES) fail("an answer of %zu bytes", size);
        if (consumer->held < size) continue;
        if (consumer->held > size) fail("more than one answer");
        take(consumer, strlen(topic));
        consumer->held = 0;
        ask(consumer, topic);
    }
    if (count == 0 || errno != EAGAIN) fail("the broker closed the connection: %s", count ? strerror(errno) : "end of stream");
}

/* fetches topic= connections=N seconds=S warmup=S: records a second out of partition 0. */
int command_fetches(void) {
    const char *topic = option("topic", "load");
    long count = number("connections", 1), has_begun = 0;
    double warmup_s = number("warmup", 2), seconds = number("seconds", 5), started = now_s();
    int epoll = epoll_create1(0);
    Consumer *consumers = calloc(count, sizeof *consumers);
    for (long i = 0; i < count; i++) {
        consumers[i].fd = connect_to(option("bootstrap", "127.0.0.1:9092"));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = consumers + i};
        epoll_ctl(epoll, EPOLL_CTL_ADD, consumers[i].fd, &event);
        ask(consumers + i, topic);
    }
    while (!has_begun || begun_s() < seconds) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, 100);
        for (int i = 0; i < ready; i++) receive(events[i].data.ptr, topic);
        if (!has_begun && now_s() - started >= warmup_s) {
            has_begun = 1;
            records = bytes = 0;
            begin();
        }
    }
    end("\"records\": %ld, \"bytes\": %ld", records, bytes);
    exit(0);
}
