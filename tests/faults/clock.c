/* Shifts the wall clock of one process, for LD_PRELOAD, by the seconds in a file.
 *
 * CLOCK_OFFSET names a file that holds one double; it is mapped, so that a step is seen at once.
 * Only CLOCK_REALTIME is shifted: CLOCK_MONOTONIC and CLOCK_BOOTTIME never jump. As under
 * libfaketime, nothing can sleep until a time on another clock. For this process alone: its
 * environment is cleaned before main() runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *offset;

__attribute__((constructor)) static void prepare(void)
{
    const char *path = getenv("CLOCK_OFFSET");
    if (path == NULL)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *found = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        abort();
    offset = found;
    unsetenv("LD_PRELOAD");
    unsetenv("CLOCK_OFFSET");
}

static time_t shift(void)
{
    return offset == NULL ? 0 : (time_t)*offset;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    if (result == 0) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now != NULL)
        *now = exact.tv_sec;
    return exact.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (offset != NULL && (flags & TIMER_ABSTIME))
        return EINVAL;
    if (real == NULL)
        real = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))dlsym(
            RTLD_NEXT, "clock_nanosleep");
    return real(clock, flags, until, left);
}
