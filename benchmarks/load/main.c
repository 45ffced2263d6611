/* The load of the benchmark: one program, so that both brokers are asked the same in the same way.
 *
 * create, delete, produce, fetch, latency and transactions are clients of librdkafka. requests and fetches speak over plain sockets,
 * where librdkafka would put several records into one request or cost more than the broker that is measured. floor is no load, but
 * a server: the least that such requests can cost.
 */
#include "load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BUCKETS 2000000

static char **options;
static int option_count;
static double begin_s, begin_cpu_s;
static uint32_t buckets[BUCKETS];
static long latencies;

const char *option(const char *name, const char *otherwise) {
    size_t length = strlen(name);
    for (int i = 0; i < option_count; i++)
        if (!strncmp(options[i], name, length) && options[i][length] == '=') return options[i] + length + 1;
    return otherwise;
}

long number(const char *name, long otherwise) {
    const char *text = option(name, NULL);
    return text ? atol(text) : otherwise;
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "load: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

void begin(void) {
    printf("begin\n");
    fflush(stdout);
    begin_cpu_s = cpu_s();
    begin_s = now_s();
}

double begun_s(void) { return now_s() - begin_s; }

void end(const char *format, ...) {
    double seconds = begun_s(), cpu = cpu_s() - begin_cpu_s;
    va_list arguments;
    va_start(arguments, format);
    printf("end {\"seconds\": %.4f, \"cpu_s\": %.3f, ", seconds, cpu);
    vprintf(format, arguments);
    printf("}\n");
    fflush(stdout);
    va_end(arguments);
}

void latency_clear(void) {
    memset(buckets, 0, sizeof buckets);
    latencies = 0;
}

void latency_add(double seconds) {
    long bucket = (long)(seconds * 1e6);
    buckets[bucket < 0 ? 0 : bucket >= BUCKETS ? BUCKETS - 1 : bucket]++;
    latencies++;
}

double latency_ms(double quantile) {
    double wanted = latencies * quantile, seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        if ((seen += buckets[bucket]) >= wanted) return bucket / 1e3;
    return BUCKETS / 1e3;
}

long latency_count(void) { return latencies; }

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int (*run)(void);
    } commands[] = {
        {"create", command_create},     {"delete", command_delete},   {"produce", command_produce},
        {"fetch", command_fetch},       {"latency", command_latency}, {"transactions", command_transactions},
        {"requests", command_requests}, {"fetches", command_fetches}, {"floor", command_floor},
    };
    options = arguments + 2;
    option_count = count - 2;
    for (size_t i = 0; count > 1 && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(arguments[1], commands[i].name)) return commands[i].run();
    fprintf(stderr, "usage: load create|delete|produce|fetch|latency|requests|fetches|transactions|floor name=value...\n");
    return 2;
}
