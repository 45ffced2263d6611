/* What the load's commands share: options, the marks that the driver reads, and latencies.
 *
 * A command prints "begin" when its warm-up is over and "end {...}" when its measured time is: the driver samples the
 * broker's CPU time at both. "cpu_s" in the last is what the load itself used in between.
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdint.h>

/* Options are given as name=value. */
const char *option(const char *name, const char *otherwise);
long number(const char *name, long otherwise);

void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

double now_s(void);
double cpu_s(void);

/* The measured time: from begin() until end(), `seconds` after it, both called by the command itself. */
void begin(void);
double begun_s(void);
void end(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Latencies in a histogram of one microsecond a bucket; what is longer than two seconds counts as two. */
void latency_clear(void);
void latency_add(double seconds);
double latency_ms(double quantile);
long latency_count(void);

int command_create(void);
int command_delete(void);
int command_produce(void);
int command_fetch(void);
int command_fetches(void);
int command_floor(void);
int command_latency(void);
int command_requests(void);
int command_transactions(void);

#endif
