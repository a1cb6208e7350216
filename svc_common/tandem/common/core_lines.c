/* What gRPC's core writes to the C library's `stderr`, as lines like ours.
 *
 * Its lines are `E1123 17:04:05.123456    4916 file.cc:12] text`, one write each. Other lines are written as they come. No
 * thread and no Python is in between: the last line of a process that aborts is written like the first. Only this
 * process's `stderr` is another one; file descriptor 2, which children inherit, stays what it was. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROOM 8192 /* of a line; a longer text is cut */
#define MOST_ESCAPED 6
#define IS_FILEBUF 0x2000 /* glibc's own: `fileno` answers for such streams alone */

static int json, least;
static char service[64];

static const char *const names[] = {"info", "warning", "error", "critical"};

static int32_t level_of(char letter) {
    const char *letters = "IWEF", *found = letter ? strchr(letters, letter) : NULL;
    return found ? (int32_t)(found - letters) : -1;
}

/* The text behind "] " of a line of the core's, and the file and line before it; NULL for other lines. */
static const char *parts(const char *bytes, size_t count, const char **source, size_t *source_size) {
    if (count < 24 || level_of(bytes[0]) < 0 || bytes[5] != ' ' || bytes[8] != ':' || bytes[11] != ':') return NULL;
    const char *end = memchr(bytes, ']', count);
    if (!end || end + 1 >= bytes + count || end[1] != ' ') return NULL;
    const char *begin = end;
    while (begin > bytes && begin[-1] != ' ') begin--;
    *source = begin;
    *source_size = (size_t)(end - begin);
    return end + 2;
}

static size_t put(char *line, size_t at, const char *bytes, size_t count) {
    for (size_t i = 0; i < count && at + MOST_ESCAPED < ROOM - 256; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte < 0x20 || byte >= 0x7f)
            at += (size_t)(json ? snprintf(line + at, MOST_ESCAPED + 1, "\\u%04x", byte < 0x20 ? byte : '?')
                                : snprintf(line + at, 2, "%c", byte == '\n' ? ' ' : '?'));
        else {
            if (json && (byte == '"' || byte == '\\')) line[at++] = '\\';
            line[at++] = (char)byte;
        }
    }
    return at;
}

static ssize_t take(void *cookie, const char *bytes, size_t count) {
    (void)cookie;
    const char *source = NULL;
    size_t source_size = 0;
    const char *text = parts(bytes, count, &source, &source_size);
    if (!text) return write(2, bytes, count);
    int32_t level = level_of(bytes[0]);
    if (level < least) return (ssize_t)count;
    size_t size = count - (size_t)(text - bytes);
    while (size && text[size - 1] == '\n') size--;

    char line[ROOM], stamp[32];
    struct timespec now;
    struct tm when;
    clock_gettime(CLOCK_REALTIME, &now);
    json ? gmtime_r(&now.tv_sec, &when) : localtime_r(&now.tv_sec, &when);
    strftime(stamp, sizeof stamp, json ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &when);
    int milliseconds = (int)(now.tv_nsec / 1000000);
    size_t at = (size_t)(json ? snprintf(line, ROOM,
                                         "{\"ts\": \"%s.%03dZ\", \"level\": \"%s\", \"service\": \"%s\", "
                                         "\"logger\": \"grpc.core\", \"message\": \"",
                                         stamp, milliseconds, names[level], service)
                              : snprintf(line, ROOM, "%s.%03d %-7s grpc.core: ", stamp, milliseconds, names[level]));
    at = put(line, at, text, size);
    at += (size_t)snprintf(line + at, 32, "%s", json ? "\", \"source\": \"" : " (source=");
    at = put(line, at, source, source_size > 200 ? 200 : source_size);
    at += (size_t)snprintf(line + at, 8, "%s\n", json ? "\"}" : ")");
    ssize_t written = write(2, line, at);
    (void)written;
    return (ssize_t)count;
}

/* Returns 1 where lines are taken from now on; 0 where the C library has no such streams. */
int32_t tandem_take_core_lines(int32_t as_json, int32_t least_level, const char *name) {
#ifdef __GLIBC__
    json = as_json;
    least = least_level;
    snprintf(service, sizeof service, "%s", name);
    cookie_io_functions_t functions = {.write = take};
    FILE *stream = fopencookie(NULL, "w", functions);
    if (!stream) return 0;
    setvbuf(stream, NULL, _IONBF, 0);
    /* For who asks for its descriptor, as Python does when it writes its last words. */
    stream->_flags |= IS_FILEBUF;
    stream->_fileno = 2;
    stderr = stream;
    return 1;
#else
    (void)as_json, (void)least_level, (void)name;
    return 0;
#endif
}
