/* What goes over plain sockets: bytes of requests, and connections. */
#ifndef WIRE_H
#define WIRE_H

#include "load.h"

#include <stddef.h>

typedef struct {
    char *bytes;
    size_t count;
} Buffer;

void put(Buffer *buffer, const void *bytes, size_t count);
void put_number(Buffer *buffer, uint64_t value, int width);
void put_string(Buffer *buffer, const char *text);
void put_varint(Buffer *buffer, long value);
/* Puts four bytes where others stood. */
void patch(Buffer *buffer, size_t at, uint32_t value);
/* The size of a frame that cannot be told yet, and all of a request's header. */
void put_header(Buffer *buffer, int api_key, int version);

uint64_t number_at(const char *bytes, int width);

int connect_to(const char *bootstrap);

#endif
