/* create, delete, produce, fetch, latency, transactions: what a client of librdkafka asks of a broker, as cheaply as that library can. */
#include "load.h"

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 100
#define QUEUE 500000 /* messages */
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

static volatile int is_running = 1;

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char reason[512];
    if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK) fail("%s", reason);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err) fail("not delivered: %s", rd_kafka_err2str(message->err));
}

static rd_kafka_t *open_named_client(rd_kafka_type_t type, const char *transactional_id) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char reason[512];
    set(conf, "bootstrap.servers", option("bootstrap", "127.0.0.1:9092"));
    set(conf, "socket.nagle.disable", "true");
    if (type == RD_KAFKA_PRODUCER) {
        set(conf, "acks", option("acks", "1"));
        set(conf, "linger.ms", option("linger_ms", "5"));
        set(conf, "compression.codec", option("codec", "none"));
        set(conf, "queue.buffering.max.messages", option("queue", TEXT(QUEUE)));
        set(conf, "delivery.report.only.error", "true");
        if (transactional_id) set(conf, "transactional.id", transactional_id);
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    } else {
        set(conf, "queued.min.messages", option("queued", "200000"));
        set(conf, "enable.partition.eof", "true");
        set(conf, "fetch.wait.max.ms", option("wait_ms", "500"));
    }
    rd_kafka_t *client = rd_kafka_new(type, conf, reason, sizeof reason);
    if (!client) fail("%s", reason);
    return client;
}

static rd_kafka_t *open_client(rd_kafka_type_t type) { return open_named_client(type, NULL); }

static rd_kafka_topic_t *open_topic(rd_kafka_t *client) { return rd_kafka_topic_new(client, option("topic", "load"), NULL); }

/* create topic=NAME partitions=N: the topic is there and has leaders when this returns. */
int command_create(void) {
    char reason[512];
    int partitions = (int)number("partitions", 1);
    rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER);
    rd_kafka_NewTopic_t *topic = rd_kafka_NewTopic_new(option("topic", "load"), partitions, 1, reason, sizeof reason);
    if (!topic) fail("%s", reason);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    rd_kafka_CreateTopics(client, &topic, 1, NULL, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, 60000);
    if (!event || rd_kafka_event_error(event)) fail("not created: %s", event ? rd_kafka_event_error_string(event) : "timeout");
    size_t count;
    const rd_kafka_topic_result_t **results = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &count);
    if (rd_kafka_topic_result_error(results[0])) fail("not created: %s", rd_kafka_topic_result_error_string(results[0]));
    rd_kafka_topic_t *created = open_topic(client);
    for (int led = 0, tries = 0; led < partitions; tries++) {
        const rd_kafka_metadata_t *metadata;
        if (tries == 600) fail("no leaders after a minute");
        if (rd_kafka_metadata(client, 0, created, &metadata, 10000)) continue;
        led = 0;
        for (int i = 0; metadata->topic_cnt && i < metadata->topics[0].partition_cnt; i++)
            led += metadata->topics[0].partitions[i].leader >= 0;
        rd_kafka_metadata_destroy(metadata);
        if (led < partitions) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    exit(0); /* destroying a client takes its time, and nobody waits for it */
}

/* delete: all topics but internal ones are going when this returns. */
int command_delete(void) {
    rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER);
    const rd_kafka_metadata_t *metadata;
    if (rd_kafka_metadata(client, 1, NULL, &metadata, 60000)) fail("no metadata");
    rd_kafka_DeleteTopic_t *topics[metadata->topic_cnt + 1];
    size_t count = 0;
    for (int i = 0; i < metadata->topic_cnt; i++)
        if (strncmp(metadata->topics[i].topic, "__", 2)) topics[count++] = rd_kafka_DeleteTopic_new(metadata->topics[i].topic);
    if (!count) exit(0);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    rd_kafka_DeleteTopics(client, topics, count, NULL, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, 60000);
    if (!event || rd_kafka_event_error(event)) fail("not deleted: %s", event ? rd_kafka_event_error_string(event) : "timeout");
    exit(0);
}

/* Hands the batch to librdkafka. Once its queue is full it is left alone until it is half empty: who tries again for each message
 * contends with the thread that sends, and both cost twice as much. */
static long enqueue(rd_kafka_t *client, rd_kafka_topic_t *topic, int partition, rd_kafka_message_t *messages, int count) {
    int left = count;
    while (left > 0) {
        if (rd_kafka_produce_batch(topic, partition, 0, messages, left) == left) break;
        int refused = 0;
        for (int i = 0; i < left; i++) {
            if (!messages[i].err) continue;
            if (messages[i].err != RD_KAFKA_RESP_ERR__QUEUE_FULL) fail("not produced: %s", rd_kafka_err2str(messages[i].err));
            messages[refused++] = messages[i];
        }
        left = refused;
        do rd_kafka_poll(client, 1);
        while (rd_kafka_outq_len(client) > number("queue", QUEUE) / 2);
    }
    rd_kafka_poll(client, 0);
    return count;
}

/* produce topic=NAME partitions=N size=BYTES seconds=S warmup=S acks= codec=: records a second that the broker acknowledged.
 * With count=N instead of seconds: sends that many, unmeasured. */
int command_produce(void) {
    rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER);
    rd_kafka_topic_t *topic = open_topic(client);
    int partitions = (int)number("partitions", 1), next = 0, has_begun = 0;
    long size = number("size", 100), count = number("count", 0), sent = 0, delivered_before = 0;
    double warmup_s = number("warmup", 2), seconds = number("seconds", 5), started = now_s();
    char *payload = malloc(size);
    for (long i = 0; i < size; i++) payload[i] = "wirekafka beside Apache Kafka, "[i % 31];
    rd_kafka_message_t messages[BATCH];
    while (count ? sent < count : !has_begun || begun_s() < seconds) {
        for (int i = 0; i < BATCH; i++) messages[i] = (rd_kafka_message_t){.payload = payload, .len = size};
        sent += enqueue(client, topic, next, messages, BATCH);
        next = next + 1 == partitions ? 0 : next + 1;
        if (!count && !has_begun && now_s() - started >= warmup_s) {
            has_begun = 1;
            delivered_before = sent - rd_kafka_outq_len(client);
            begin();
        }
    }
    long delivered = sent - rd_kafka_outq_len(client) - delivered_before;
    if (!count) end("\"records\": %ld", delivered);
    if (rd_kafka_flush(client, 60000)) fail("not flushed within a minute");
    exit(0);
}

static long fetched;
static int is_at_end;

static void on_record(rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) is_at_end = 1;
    else if (message->err) fail("not fetched: %s", rd_kafka_message_errstr(message));
    else fetched++;
}

/* fetch topic=NAME wait_ms=MS seconds=S warmup=S: records a second out of partition 0, again from its start whenever its end is
 * reached, after the broker has waited there. */
int command_fetch(void) {
    rd_kafka_t *client = open_client(RD_KAFKA_CONSUMER);
    rd_kafka_topic_t *topic = open_topic(client);
    double warmup_s = number("warmup", 2), seconds = number("seconds", 5), started = now_s();
    long fetched_before = 0, has_begun = 0;
    if (rd_kafka_consume_start(topic, 0, RD_KAFKA_OFFSET_BEGINNING)) fail("not started");
    while (!has_begun || begun_s() < seconds) {
        rd_kafka_consume_callback(topic, 0, 100, on_record, NULL);
        if (is_at_end) {
            is_at_end = 0;
            if (!fetched) fail("the topic is empty");
            if (rd_kafka_seek(topic, 0, RD_KAFKA_OFFSET_BEGINNING, 10000)) fail("no way back to the start");
        }
        if (!has_begun && now_s() - started >= warmup_s) {
            has_begun = 1;
            fetched_before = fetched;
            begin();
        }
    }
    end("\"records\": %ld", fetched - fetched_before);
    exit(0);
}

static void *consume_latencies(void *topic) {
    while (is_running) {
        rd_kafka_message_t *message = rd_kafka_consume(topic, 0, 100);
        if (!message) continue;
        if (!message->err && message->len >= sizeof(double)) {
            double sent_s;
            memcpy(&sent_s, message->payload, sizeof sent_s);
            latency_add(now_s() - sent_s);
        }
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

/* latency topic=NAME rate=PER_SECOND size=BYTES seconds=S warmup=S: milliseconds from produce() to the consumer that waits. */
int command_latency(void) {
    rd_kafka_t *producer = open_client(RD_KAFKA_PRODUCER), *consumer = open_client(RD_KAFKA_CONSUMER);
    rd_kafka_topic_t *out = open_topic(producer), *in = open_topic(consumer);
    double period_s = 1.0 / number("rate", 1000), warmup_s = number("warmup", 2), seconds = number("seconds", 5);
    long size = number("size", 100), has_begun = 0;
    pthread_t thread;
    if (rd_kafka_consume_start(in, 0, RD_KAFKA_OFFSET_END)) fail("not started");
    pthread_create(&thread, NULL, consume_latencies, in);
    char *payload = calloc(1, size);
    double started = now_s(), due = started;
    while (!has_begun || begun_s() < seconds) {
        double now = now_s();
        if (now < due) {
            nanosleep(&(struct timespec){.tv_nsec = (long)((due - now) * 1e9)}, NULL);
            now = now_s();
        }
        due += period_s;
        memcpy(payload, &now, sizeof now);
        if (rd_kafka_produce(out, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL)) fail("not produced");
        rd_kafka_poll(producer, 0);
        if (!has_begun && now - started >= warmup_s) {
            has_begun = 1;
            latency_clear();
            begin();
        }
    }
    is_running = 0;
    end("\"records\": %ld, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f", latency_count(), latency_ms(0.5), latency_ms(0.99),
        latency_ms(1));
    exit(0);
}

static long committed;

static void check(rd_kafka_error_t *error) {
    if (error) fail("no transaction: %s", rd_kafka_error_string(error));
}

/* One producer: its number is its partition, and a part of its transactional id. */
static void *transact(void *number_of_producer) {
    int partition = (int)(intptr_t)number_of_producer;
    char id[64], payload[100];
    snprintf(id, sizeof id, "load-%d", partition);
    memset(payload, 'w', sizeof payload);
    rd_kafka_t *client = open_named_client(RD_KAFKA_PRODUCER, id);
    rd_kafka_topic_t *topic = open_topic(client);
    check(rd_kafka_init_transactions(client, 60000));
    while (is_running) {
        check(rd_kafka_begin_transaction(client));
        if (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, payload, sizeof payload, NULL, 0, NULL)) fail("not produced");
        check(rd_kafka_commit_transaction(client, 60000));
        __atomic_add_fetch(&committed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* transactions topic=NAME producers=N acks=all linger_ms=0 seconds=S warmup=S: transactions of one record a second. */
int command_transactions(void) {
    long producers = number("producers", 1);
    pthread_t thread;
    for (long i = 0; i < producers; i++) pthread_create(&thread, NULL, transact, (void *)(intptr_t)i);
    nanosleep(&(struct timespec){.tv_sec = number("warmup", 2)}, NULL);
    long before = __atomic_load_n(&committed, __ATOMIC_RELAXED);
    begin();
    nanosleep(&(struct timespec){.tv_sec = number("seconds", 5)}, NULL);
    end("\"transactions\": %ld", __atomic_load_n(&committed, __ATOMIC_RELAXED) - before);
    exit(0);
}
