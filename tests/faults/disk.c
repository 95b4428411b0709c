/* Makes calls on files below one folder fail, for LD_PRELOAD.
 *
 * Counts the calls of the chosen kinds that the process makes on files below FAULTS_ROOT and
 * lets those from the FAULTS_FIRST-th on, FAULTS_COUNT of them, fail with the error FAULTS_ERROR
 * (FAULTS_FIRST=0: none, they are only listed). Files without FAULTS_ONLY in their path do not count. Each is listed in the file FAULTS_LOG: its
 * number, its kind, its name, its path, and INJECTED if it failed.
 *
 * FAULTS_KINDS: w (writes, syncs, everything that makes a file or changes its size), u (unlink,
 * rmdir, rename), r (reads), o (opens of files that are there), d (whatever makes a
 * descriptor, wherever, once the process has touched a file below the folder).
 *
 * For this process alone: its environment is cleaned before main() runs, so that what it starts
 * is not affected.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static char kinds[16], only[64];
static int error_number, log_fd = -1, touched;
static long first, count, seen;
static pid_t armed; /* the process that it is for; 0: none */

__attribute__((constructor)) static void prepare(void)
{
    const char *folder = getenv("FAULTS_ROOT"), *log = getenv("FAULTS_LOG");
    if (folder == NULL || log == NULL)
        return;
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    snprintf(kinds, sizeof kinds, "%s", getenv("FAULTS_KINDS"));
    snprintf(only, sizeof only, "%s", getenv("FAULTS_ONLY"));
    error_number = atoi(getenv("FAULTS_ERROR"));
    first = atol(getenv("FAULTS_FIRST"));
    count = atol(getenv("FAULTS_COUNT"));
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_fd = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 200);
    syscall(SYS_close, fd);
    armed = getpid();
    unsetenv("LD_PRELOAD");
    unsetenv("FAULTS_ROOT");
    unsetenv("FAULTS_LOG");
    unsetenv("FAULTS_KINDS");
    unsetenv("FAULTS_ONLY");
    unsetenv("FAULTS_ERROR");
    unsetenv("FAULTS_FIRST");
    unsetenv("FAULTS_COUNT");
}

static int below(const char *path)
{
    return strncmp(path, root, root_length) == 0 ||
           (strlen(path) == root_length - 1 && strncmp(path, root, root_length - 1) == 0);
}

/* Whether this call is to fail; errno is set then. */
static int fails(char kind, const char *name, const char *path)
{
    if (armed == 0 || armed != getpid())
        return 0;
    int ours = path != NULL && below(path);
    touched |= ours;
    if (strchr(kinds, kind) == NULL || !(ours || (kind == 'd' && touched)))
        return 0;
    if (only[0] && (path == NULL || strstr(path, only) == NULL))
        return 0;
    seen++;
    int injected = first > 0 && seen >= first && seen < first + count;
    char line[PATH_MAX + 100];
    int size = snprintf(line, sizeof line, "%ld %c %s %s%s\n", seen, kind, name,
                        path == NULL ? "-" : path, injected ? " INJECTED" : "");
    syscall(SYS_write, log_fd, line, size);
    if (injected)
        errno = error_number;
    return injected;
}

static int fails_fd(char kind, const char *name, int fd)
{
    char link[64], path[PATH_MAX];
    int before = errno;
    if (armed == 0 || armed != getpid() || strchr(kinds, kind) == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size <= 0)
        return 0;
    path[size] = 0;
    return fails(kind, name, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_FD(kind, type, name, declared, given)                                                  \
    type name declared                                                                            \
    {                                                                                             \
        static __typeof__(&name) real;                                                            \
        if (real == NULL)                                                                         \
            real = REAL(name);                                                                    \
        return fails_fd(kind, #name, fd) ? -1 : real given;                                       \
    }
#define ON_PATH(kind, type, name, declared, given)                                                \
    type name declared                                                                            \
    {                                                                                             \
        static __typeof__(&name) real;                                                            \
        if (real == NULL)                                                                         \
            real = REAL(name);                                                                    \
        return fails(kind, #name, path) ? -1 : real given;                                        \
    }

ON_FD('w', ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD('w', ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD('w', ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at),
      (fd, data, size, at))
ON_FD('w', ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n))
ON_FD('w', int, fsync, (int fd), (fd))
ON_FD('w', int, fdatasync, (int fd), (fd))
ON_FD('w', int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD('w', int, ftruncate64, (int fd, off64_t size), (fd, size))
ON_FD('w', int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
ON_FD('w', int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
ON_PATH('w', int, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH('w', int, mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device))
ON_PATH('w', int, mkfifo, (const char *path, mode_t mode), (path, mode))
ON_PATH('u', int, unlink, (const char *path), (path))
ON_PATH('u', int, rmdir, (const char *path), (path))
ON_PATH('u', int, rename, (const char *path, const char *to), (path, to))
ON_FD('r', ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ON_FD('r', ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD('r', ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

static int fails_open(const char *name, const char *path, int flags)
{
    return fails('d', name, path) || fails(flags & O_CREAT ? 'w' : 'o', name, path);
}

#define OPENS(name, declared, given)                                                              \
    int name declared                                                                             \
    {                                                                                             \
        static __typeof__(&name) real;                                                            \
        va_list more;                                                                             \
        va_start(more, flags);                                                                    \
        int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;                       \
        va_end(more);                                                                             \
        if (real == NULL)                                                                         \
            real = REAL(name);                                                                    \
        return fails_open(#name, path, flags) ? -1 : real given;                                  \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

DIR *opendir(const char *path)
{
    return fails('d', "opendir", path) || fails('o', "opendir", path) ? NULL : REAL(opendir)(path);
}

int pipe2(int fds[2], int flags)
{
    return fails('d', "pipe2", NULL) ? -1 : REAL(pipe2)(fds, flags);
}
