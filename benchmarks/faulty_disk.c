/* A disk that fails: calls of libc on files below a folder, and on progress reports wherever they are, fail by
   chance, for a program that preloads this.

   DISK_FAULTS is `SHARE SEED FOLDER`. Of so many calls each one fails with ESTALE or EIO, or ENOSPC if it
   writes; half of those that change something have been carried out by then, as on NFS. An fsync may take a
   second instead. It covers Python and TensorFlow's C++ alike. Each fault is a line of the file DISK_FAULTS_LOG,
   and none comes before that file exists.

   cc -shared -fPIC -O2 -o faulty_disk.so faulty_disk.c -ldl */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static double share;
static char folder[PATH_MAX];
static size_t length;
static unsigned long state;
static const char *log_path;
static int is_under_way;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void) {
    const char *text = getenv("DISK_FAULTS"), *task = getenv("TF_CONFIG"), *log = getenv("DISK_FAULTS_LOG");
    unsigned long seed = 0;
    if (!text || sscanf(text, "%lf %lu %4095s", &share, &seed, folder) != 3) share = 0;
    length = strlen(folder);
    state = 88172645463325252UL ^ (seed * 2654435761UL);
    for (task = task ? strstr(task, "\"task\"") : NULL; task && *task; task++) state = state * 31 + *task;
    for (task = getenv("TRAINJOB_ATTEMPT"); task && *task; task++) state = state * 31 + *task;
    log_path = log ? log : "";
}

static int has_begun(void) {
    if (!is_under_way) is_under_way = !syscall(SYS_faccessat, AT_FDCWD, log_path, F_OK);
    return is_under_way;
}

static double chance(void) {
    unsigned long old = __atomic_fetch_add(&state, 0x9E3779B97F4A7C15UL, __ATOMIC_RELAXED);
    old = (old ^ (old >> 30)) * 0xBF58476D1CE4E5B9UL;
    old = (old ^ (old >> 27)) * 0x94D049BB133111EBUL;
    return (double)((old ^ (old >> 31)) >> 11) / 9007199254740992.0;
}

static int is_below(const char *path) {
    if (path && (strstr(path, "/progress.json") || strstr(path, "/.tmp-progress.json"))) return 1;
    return path && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Return the number of the error with which a call on this path fails, 0 if it doesn't. */
static int fault(const char *call, const char *path, int writes) {
    static const int errors[] = {ESTALE, EIO, ENOSPC};
    pthread_once(&once, start);
    if (share <= 0 || !is_below(path) || !has_begun() || chance() >= share) return 0;
    int number = errors[(int)(chance() * (writes ? 3 : 2))];
    char line[PATH_MAX + 100];
    int size = snprintf(line, sizeof line, "%d %s %d %s\n", getpid(), call, number, path);
    int log = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    syscall(SYS_write, log, line, size);
    syscall(SYS_close, log);
    return number;
}

static int fault_at(const char *call, int at, const char *path, int writes) {
    char whole[2 * PATH_MAX], link[40];
    pthread_once(&once, start);
    if (share <= 0) return 0;
    if (path && (*path == '/' || at == AT_FDCWD)) return fault(call, path, writes);
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, whole, PATH_MAX - 1);
    if (size <= 0) return 0;
    whole[size] = 0;
    if (path && *path) snprintf(whole + size, PATH_MAX, "/%s", path);
    return fault(call, whole, writes);
}

static int fail(int number) {
    errno = number;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* A call that changes something fails before it or after it. */
#define CHANGE(type, name, parameters, arguments, number_of_fault)      \
    type name parameters {                                              \
        static __typeof__(&name) real;                                  \
        if (!real) real = REAL(name);                                   \
        int saved = errno, number = number_of_fault;                    \
        errno = saved;                                                  \
        if (number && chance() < 0.5) return fail(number);              \
        type result = real arguments;                                   \
        return number && result >= 0 ? fail(number) : result;           \
    }

/* One that only reads fails before. */
#define LOOK(type, name, parameters, arguments, number_of_fault, failed) \
    type name parameters {                                              \
        static __typeof__(&name) real;                                  \
        if (!real) real = REAL(name);                                   \
        int saved = errno, number = number_of_fault;                    \
        errno = saved;                                                  \
        if (number) return fail(number), failed;                        \
        return real arguments;                                          \
    }

CHANGE(int, mkdir, (const char *p, mode_t m), (p, m), fault("mkdir", p, 1))
CHANGE(int, rename, (const char *a, const char *b), (a, b), fault("rename", b, 1))
CHANGE(int, renameat, (int x, const char *a, int y, const char *b), (x, a, y, b), fault_at("rename", y, b, 1))
CHANGE(int, unlink, (const char *p), (p), fault("unlink", p, 0))
CHANGE(int, unlinkat, (int at, const char *p, int f), (at, p, f), fault_at("unlink", at, p, 0))
CHANGE(int, rmdir, (const char *p), (p), fault("rmdir", p, 0))
CHANGE(int, ftruncate, (int fd, off_t n), (fd, n), fault_at("ftruncate", fd, NULL, 1))
LOOK(ssize_t, write, (int fd, const void *d, size_t n), (fd, d, n), fault_at("write", fd, NULL, 1), -1)
LOOK(ssize_t, pwrite64, (int fd, const void *d, size_t n, off64_t o), (fd, d, n, o),
     fault_at("write", fd, NULL, 1), -1)
LOOK(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), fault_at("write", fd, NULL, 1), -1)
LOOK(ssize_t, read, (int fd, void *d, size_t n), (fd, d, n), fault_at("read", fd, NULL, 0), -1)
LOOK(ssize_t, pread, (int fd, void *d, size_t n, off_t o), (fd, d, n, o), fault_at("read", fd, NULL, 0), -1)
LOOK(ssize_t, pread64, (int fd, void *d, size_t n, off64_t o), (fd, d, n, o), fault_at("read", fd, NULL, 0), -1)
LOOK(DIR *, opendir, (const char *p), (p), fault("opendir", p, 0), NULL)
LOOK(int, stat, (const char *p, struct stat *s), (p, s), fault("stat", p, 0), -1)
LOOK(int, lstat, (const char *p, struct stat *s), (p, s), fault("stat", p, 0), -1)
LOOK(int, stat64, (const char *p, struct stat64 *s), (p, s), fault("stat", p, 0), -1)
LOOK(int, lstat64, (const char *p, struct stat64 *s), (p, s), fault("stat", p, 0), -1)
LOOK(int, fstatat, (int at, const char *p, struct stat *s, int f), (at, p, s, f), fault_at("stat", at, p, 0), -1)
LOOK(int, access, (const char *p, int m), (p, m), fault("access", p, 0), -1)
LOOK(size_t, fwrite, (const void *d, size_t s, size_t n, FILE *f), (d, s, n, f),
     fault_at("fwrite", fileno(f), NULL, 1), 0)
LOOK(int, fflush, (FILE *f), (f), f ? fault_at("fflush", fileno(f), NULL, 1) : 0, EOF)
LOOK(FILE *, fopen, (const char *p, const char *m), (p, m), fault("fopen", p, strchr(m, 'r') == NULL), NULL)
LOOK(FILE *, fopen64, (const char *p, const char *m), (p, m), fault("fopen", p, strchr(m, 'r') == NULL), NULL)

static int sync_after(int number) {
    if (number && chance() < 0.3) {
        usleep(1000000);
        return 0;
    }
    return number;
}
LOOK(int, fsync, (int fd), (fd), sync_after(fault_at("fsync", fd, NULL, 1)), -1)
LOOK(int, fdatasync, (int fd), (fd), sync_after(fault_at("fsync", fd, NULL, 1)), -1)

/* NFS reports a failed write when the file is closed; the descriptor is gone all the same. */
int close(int fd) {
    static __typeof__(&close) real;
    if (!real) real = REAL(close);
    int is_written = fd > 2 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int number = is_written ? fault_at("close", fd, NULL, 1) : 0;
    int result = real(fd);
    return number && !result ? fail(number) : result;
}

#define OPEN(name, parameters, at, path)                                                            \
    int name parameters {                                                                                   \
        static int(*real) (int, const char *, int, mode_t);                                                 \
        if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "openat");                                     \
        mode_t mode = 0;                                                                                    \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                \
            va_list more;                                                                                   \
            va_start(more, flags);                                                                          \
            mode = va_arg(more, mode_t);                                                                    \
            va_end(more);                                                                                   \
        }                                                                                                   \
        int number = fault_at("open", at, path, (flags & O_ACCMODE) != O_RDONLY);                           \
        if (number && (chance() < 0.5 || !(flags & O_CREAT))) return fail(number);                          \
        int fd = real(at, path, flags, mode);                                                               \
        if (!number || fd < 0) return fd;                                                                   \
        syscall(SYS_close, fd);                                                                             \
        return fail(number);                                                                                \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(openat, (int at, const char *path, int flags, ...), at, path)
OPEN(openat64, (int at, const char *path, int flags, ...), at, path)
