/* floor: what a broker cannot do without for the rows about bytes, and nothing else.
 *
 * It speaks as much of the protocol as the load needs: one broker, topics that are created, Produce requests of one batch, Fetch
 * requests of one partition that are answered at once. A batch is received, read for its CRC32C, given its offset, written to the
 * partition's file and answered; files are begun anew at 1 GiB, and the full ones synced by a thread, as both brokers do. A Fetch is
 * answered by sendfile out of the newest file. What this costs is what no broker in any language can be cheaper than.
 */
#include "files.h"
#include "wire.h"

#include <arpa/inet.h>
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
#define ANSWER_BYTES (64 << 10)
#define TOPICS 64
#define PARTITIONS 1000 /* of a topic: what one answer to Metadata has room for */
#define HEADER_BYTES 14 /* of a frame, up to the client id */
#define SEND_BUFFER_BYTES 204800 /* more or less takes more CPU for each byte */

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18, CREATE_TOPICS = 19 };

/* Clients take some of the old versions for signs of what a broker can do, and use the newest. */
static const struct {
    int key, oldest, newest;
} served[] = {{PRODUCE, 0, 8}, {FETCH, 0, 11}, {LIST_OFFSETS, 0, 1}, {METADATA, 0, 1}, {API_VERSIONS, 0, 3}, {CREATE_TOPICS, 0, 0}};

typedef struct {
    char *name; /* as it stands in requests, its length first */
    size_t name_bytes, partition_count;
    Partition *partitions;
} Topic;

static Topic topics[TOPICS];
static int topic_count, partition_count, port;
static pthread_mutex_t topics_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t string_bytes(const char *string) { return 2 + number_at(string, 2); }

/* The topic of that name, or NULL. */
static Topic *topic_named(const char *name) {
    size_t name_bytes = string_bytes(name);
    int count = __atomic_load_n(&topic_count, __ATOMIC_ACQUIRE);
    for (int i = 0; i < count; i++)
        if (topics[i].name_bytes == name_bytes && !memcmp(topics[i].name, name, name_bytes)) return topics + i;
    return NULL;
}

/* The partition whose topic's name stands there and whose index stands `gap` bytes behind it. */
static Partition *partition_named(const char *name, size_t gap) {
    Topic *topic = topic_named(name);
    size_t index = number_at(name + string_bytes(name) + gap, 4);
    if (!topic || index >= topic->partition_count) fail("a partition that was not created");
    return partition_at(topic->partitions, index);
}

static void create_topic(Buffer *answer, const char *body) {
    const char *name = body + 4;
    size_t name_bytes = string_bytes(name), count = number_at(name + name_bytes, 4);
    if (number_at(body, 4) != 1 || count < 1 || count > PARTITIONS) fail("one topic at a time, of %d partitions at most", PARTITIONS);
    pthread_mutex_lock(&topics_lock);
    if (topic_count == TOPICS || topic_named(name)) fail("a topic too many, or one that is there");
    topics[topic_count] = (Topic){memcpy(malloc(name_bytes), name, name_bytes), name_bytes, count, new_partitions(count, partition_count)};
    partition_count += (int)count;
    __atomic_store_n(&topic_count, topic_count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&topics_lock);
    put_number(answer, 1, 4);
    put(answer, name, name_bytes);
    put_number(answer, 0, 2);
}

static void put_versions(Buffer *answer, int version) {
    size_t count = sizeof served / sizeof *served;
    put_number(answer, 0, 2);
    put_number(answer, version < 3 ? count : count + 1, version < 3 ? 4 : 1); /* a compact array's length goes up by one */
    for (size_t i = 0; i < count; i++) {
        put_number(answer, served[i].key, 2);
        put_number(answer, served[i].oldest, 2);
        put_number(answer, served[i].newest, 2);
        if (version >= 3) put_number(answer, 0, 1); /* no tags */
    }
    if (version >= 1) put_number(answer, 0, 4);
    if (version >= 3) put_number(answer, 0, 1);
}

static void put_topic(Buffer *answer, const char *name) {
    Topic *topic = topic_named(name);
    put_number(answer, topic ? 0 : 3, 2); /* UNKNOWN_TOPIC_OR_PARTITION */
    put(answer, name, string_bytes(name));
    put_number(answer, 0, 1);
    put_number(answer, topic ? topic->partition_count : 0, 4);
    for (size_t i = 0; topic && i < topic->partition_count; i++) {
        put_number(answer, 0, 2);
        put_number(answer, i, 4);
        put_number(answer, 1, 4); /* leader */
        for (int list = 0; list < 2; list++) { /* replicas, and those in sync */
            put_number(answer, 1, 4);
            put_number(answer, 1, 4);
        }
    }
}

/* Versions 0 and 1; of several topics the first, of none in particular none. */
static void put_metadata(Buffer *answer, int version, const char *body) {
    put_number(answer, 1, 4);
    put_number(answer, 1, 4);
    put_string(answer, "127.0.0.1");
    put_number(answer, port, 4);
    if (version >= 1) {
        put_number(answer, -1, 2); /* no rack */
        put_number(answer, 1, 4);  /* controller */
    }
    int has_topic = (int32_t)number_at(body, 4) > 0;
    put_number(answer, has_topic, 4);
    if (has_topic) put_topic(answer, body + 4);
}

/* Version 1, one partition: its first offset, or its next. */
static void put_offset(Buffer *answer, const char *body) {
    const char *name = body + 8, *index = name + string_bytes(name) + 4;
    put_number(answer, 1, 4);
    put(answer, name, string_bytes(name));
    put_number(answer, 1, 4);
    put(answer, index, 4);
    put_number(answer, 0, 2);
    put_number(answer, -1, 8);
    put_number(answer, (int64_t)number_at(index + 4, 8) == -2 ? 0 : next_offset_of(partition_named(name, 4)), 8);
}

/* Versions 7 and 8. */
static void put_produced(Buffer *answer, int version, char *body) {
    char *name = body + 2 + 2 + 4 + 4; /* no transactional id, acks, timeout, number of topics */
    char *batch = name + string_bytes(name) + 4 + 4 + 4;
    uint64_t offset = append(partition_named(name, 4), batch, number_at(batch - 4, 4));
    put_number(answer, 1, 4);
    put(answer, name, string_bytes(name));
    put_number(answer, 1, 4);
    put(answer, batch - 8, 4);
    put_number(answer, 0, 2);
    put_number(answer, offset, 8);
    put_number(answer, -1, 8);
    put_number(answer, 0, 8); /* first offset of the log */
    if (version >= 8) {
        put_number(answer, 0, 4);  /* no record errors */
        put_number(answer, -1, 2); /* no message */
    }
    put_number(answer, 0, 4);
}

/* Version 11: all but the batches, which go behind it. */
static Span put_fetched(Buffer *answer, const char *body) {
    const char *name = body + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4, *index = name + string_bytes(name) + 4;
    Partition *partition = partition_named(name, 4);
    Span span = span_from(partition, number_at(index + 8, 8), number_at(index + 24, 4));
    uint64_t next_offset = next_offset_of(partition);
    put_number(answer, 0, 4 + 2 + 4);
    put_number(answer, 1, 4);
    put(answer, name, string_bytes(name));
    put_number(answer, 1, 4);
    put(answer, index, 4);
    put_number(answer, 0, 2);
    put_number(answer, next_offset, 8);
    put_number(answer, next_offset, 8);
    put_number(answer, 0, 8);
    put_number(answer, -1, 4); /* no aborted transactions */
    put_number(answer, -1, 4); /* no other replica */
    put_number(answer, span.bytes, 4);
    return span;
}

/* Sends the answer and the batches behind it; whether they went. */
static int send_answer(int connection, Buffer *answer, Span span) {
    patch(answer, 0, (uint32_t)(answer->count - 4 + span.bytes));
    int flags = MSG_NOSIGNAL | (span.bytes ? MSG_MORE : 0);
    if (send(connection, answer->bytes, answer->count, flags) != (ssize_t)answer->count) return 0;
    while (span.bytes) {
        ssize_t sent = sendfile(connection, span.descriptor, &span.place, span.bytes);
        if (sent <= 0) return 0;
        span.bytes -= (size_t)sent;
    }
    return 1;
}

/* Answers a request; whether the connection goes on. */
static int answer_request(int connection, char *request, char *text) {
    Buffer answer = {text, 0};
    Span span = {0, 0, 0};
    int key = (int)number_at(request + 4, 2), version = (int)number_at(request + 6, 2);
    char *body = request + HEADER_BYTES + (int16_t)number_at(request + 12, 2);
    put_number(&answer, 0, 4);
    put(&answer, request + 8, 4); /* correlation id */
    if (key == PRODUCE && (version == 7 || version == 8)) put_produced(&answer, version, body);
    else if (key == FETCH && version == 11) span = put_fetched(&answer, body);
    else if (key == LIST_OFFSETS && version == 1) put_offset(&answer, body);
    else if (key == METADATA) put_metadata(&answer, version, body);
    else if (key == API_VERSIONS) put_versions(&answer, version);
    else if (key == CREATE_TOPICS) create_topic(&answer, body);
    else fail("request %d of version %d", key, version);
    return send_answer(connection, &answer, span);
}

/* Receives so many bytes; whether they came. */
static int receive(int connection, char *bytes, size_t count) {
    return recv(connection, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

static void *serve(void *descriptor) {
    int connection = (int)(intptr_t)descriptor;
    char *request = malloc(REQUEST_BYTES), *answer = malloc(ANSWER_BYTES);
    while (receive(connection, request, 4)) {
        size_t size = number_at(request, 4);
        if (size > REQUEST_BYTES - 4 || !receive(connection, request + 4, size) || !answer_request(connection, request, answer)) break;
    }
    free(request);
    free(answer);
    close(connection);
    return NULL;
}

/* floor directory=PATH: prints its port. */
int command_floor(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, room = SEND_BUFFER_BYTES;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 8)) fail("no port can be had");
    getsockname(listener, (struct sockaddr *)&address, &size);
    port = ntohs(address.sin_port);
    printf("%d\n", port);
    fflush(stdout);
    for (int connection; (connection = accept(listener, NULL, NULL)) >= 0;) {
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection)) fail("no thread can be had");
        pthread_detach(thread);
    }
    return 0;
}
