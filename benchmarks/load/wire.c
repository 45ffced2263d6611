#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void put(Buffer *buffer, const void *bytes, size_t count) {
    memcpy(buffer->bytes + buffer->count, bytes, count);
    buffer->count += count;
}

void put_number(Buffer *buffer, uint64_t value, int width) {
    while (width--) buffer->bytes[buffer->count++] = (char)(value >> 8 * width);
}

void put_string(Buffer *buffer, const char *text) {
    put_number(buffer, strlen(text), 2);
    put(buffer, text, strlen(text));
}

void put_varint(Buffer *buffer, long value) {
    unsigned long left = (unsigned long)value << 1;
    for (; left >= 128; left >>= 7) buffer->bytes[buffer->count++] = (char)(left | 128);
    buffer->bytes[buffer->count++] = (char)left;
}

void patch(Buffer *buffer, size_t at, uint32_t value) {
    size_t count = buffer->count;
    buffer->count = at;
    put_number(buffer, value, 4);
    buffer->count = count;
}

void put_header(Buffer *buffer, int api_key, int version) {
    put_number(buffer, 0, 4);
    put_number(buffer, api_key, 2);
    put_number(buffer, version, 2);
    put_number(buffer, 7, 4); /* correlation id */
    put_string(buffer, "load");
}

uint64_t number_at(const char *bytes, int width) {
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value = value << 8 | (unsigned char)bytes[i];
    return value;
}

int connect_to(const char *bootstrap) {
    char host[64];
    int port, on = 1;
    if (sscanf(bootstrap, "%63[^:]:%d", host, &port) != 2) fail("no HOST:PORT: %s", bootstrap);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("not an address: %s", host);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}
