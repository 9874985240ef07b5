/* Links: how a process and its worker processes pass shared memory to each other.
 *
 * Payloads name shared memory by a random number. The descriptors behind it travel through a pair of sockets, one pair
 * for each worker process. So it does not matter whether a process may look into another one's folder in /proc, or
 * whether there is one: it may not after `setuid`, in some containers, or where /proc is hidden.
 *
 * - A worker that lacks memory *wants* it: it sends a request and waits for the answer. Any thread of the parent may
 *   serve the request; usually it is the one that watches the processes.
 * - A worker *gives* memory to its parent before it sends a payload that names it. So what a payload names has always
 *   arrived when the payload has, even if the worker has died meanwhile.
 *
 * In both cases the parent keeps a reference to the memory until the worker *drops* it, that is until nobody uses it in
 * the worker, or until the worker has ended. So a worker gives memory at most once, and none that it got from here.
 *
 * Locks, in the order in which they are taken: `links`, `upstream`, the mutex in memory.c.
 */
#include "native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WANT = 1, HAVE, LACK, GIVE, DROP };

typedef struct {
    uint32_t what, readonly;
    unsigned char id[PP_SHARE_ID];
} message_t;

typedef struct held {       /* memory that a worker has as well */
    struct held *next;
    pp_memory_t *memory;
    unsigned char id[PP_SHARE_ID];
} held_t;

struct pp_link {            /* the parent's end */
    int fd;                 /* -1: closed */
    uint64_t file_number;
    held_t *held;
    pp_link_t *next, **link;
};

static pthread_mutex_t links = PTHREAD_MUTEX_INITIALIZER;      /* guards all links of this process to its workers */
static pp_link_t *all;
static _Atomic unsigned n_links;

static pthread_mutex_t upstream = PTHREAD_MUTEX_INITIALIZER;   /* guards the worker's end: one request at a time */
static _Atomic int upstream_fd = -1;
static uint64_t upstream_number;

/* ---- messages ---- */

static ssize_t send_message(int fd, uint32_t what, bool readonly, const unsigned char *id, int passed, int flags) {
    message_t message = {.what = what, .readonly = readonly};
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec part = {&message, sizeof message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    memcpy(message.id, id, PP_SHARE_ID);
    if (passed >= 0) {
        header.msg_control = control.room;
        header.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    ssize_t n;
    while ((n = sendmsg(fd, &header, flags | MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return n;
}

/* 0, or an errno: EPIPE if the other side has closed its end. *passed is -1 if no descriptor came, or none was left for
 * it here. */
static int receive_message(int fd, message_t *message, int *passed, int flags) {
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t n;
    *passed = -1;
    while ((n = recvmsg(fd, &header, flags | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (n < 0)
        return errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(passed, CMSG_DATA(c), sizeof *passed);
    *passed = pp_above_standard(*passed);
    return n == sizeof *message ? 0 : EPIPE;
}

/* ---- the parent's side ---- */

int pp_link_new(pp_link_t **out, int *worker_fd) {
    int fds[2];
    pp_link_t *link = calloc(1, sizeof *link);
    if (link == NULL)
        return ENOMEM;
    int error = pp_socket_pair(fds);
    if (error) {
        free(link);
        return error;
    }
    *link = (pp_link_t){.fd = fds[0], .file_number = pp_file_number(fds[0])};
    *worker_fd = fds[1];
    pthread_mutex_lock(&links);
    link->next = all;
    link->link = &all;
    if (all)
        all->link = &link->next;
    all = link;
    pthread_mutex_unlock(&links);
    pp_add_seq_cst(&n_links, 1);
    *out = link;
    return 0;
}

static bool has_end(const pp_link_t *link) { return link->fd >= 0 && pp_file_number(link->fd) == link->file_number; }

static held_t **find_held(pp_link_t *link, const unsigned char *id) {
    held_t **at = &link->held;
    while (*at && memcmp((*at)->id, id, PP_SHARE_ID) != 0)
        at = &(*at)->next;
    return at;
}

/* Consumes the reference. */
static void hold(pp_link_t *link, pp_memory_t *memory, const unsigned char *id) {
    held_t *new = *find_held(link, id) == NULL ? malloc(sizeof *new) : NULL;
    if (new == NULL) {
        pp_memory_unref(memory);
        return;
    }
    *new = (held_t){.next = link->held, .memory = memory};
    memcpy(new->id, id, PP_SHARE_ID);
    link->held = new;
}

static void drop(pp_link_t *link, held_t **at) {
    held_t *old = *at;
    (void)link;
    *at = old->next;
    pp_memory_unref(old->memory);
    free(old);
}

static void answer(pp_link_t *link, const message_t *message, int passed) {
    pp_memory_t *memory;
    held_t **at;
    switch (message->what) {
    case WANT:
        memory = pp_memory_known(message->id);
        send_message(link->fd, memory ? HAVE : LACK, false, message->id, memory ? pp_memory_fd(memory) : -1, MSG_DONTWAIT);
        if (memory)
            hold(link, memory, message->id);
        break;
    case GIVE:
        if (passed >= 0 && pp_memory_adopt(passed, message->id, message->readonly, &memory) == 0)
            hold(link, memory, message->id);
        break;
    case DROP:
        if (*(at = find_held(link, message->id)) != NULL)
            drop(link, at);
        break;
    }
}

/* Called with the mutex. */
static void serve_link(pp_link_t *link) {
    message_t message;
    int passed;
    while (has_end(link) && receive_message(link->fd, &message, &passed, MSG_DONTWAIT) == 0)
        answer(link, &message, passed);
}

int pp_link_serve(pp_link_t *link) {
    pthread_mutex_lock(&links);
    serve_link(link);
    int error = has_end(link) ? 0 : EBADF;
    pthread_mutex_unlock(&links);
    return error;
}

void pp_links_serve(void) {
    if (pp_load_relaxed(&n_links) == 0)
        return;
    pthread_mutex_lock(&links);
    for (pp_link_t *link = all; link; link = link->next)
        serve_link(link);
    pthread_mutex_unlock(&links);
}

int pp_link_fd(const pp_link_t *link) { return link->fd; }

static void close_end(pp_link_t *link) {
    if (has_end(link))
        close(link->fd);
    link->fd = -1;
    while (link->held)
        drop(link, &link->held);
}

void pp_link_free(pp_link_t *link) {
    pthread_mutex_lock(&links);
    close_end(link);
    *link->link = link->next;
    if (link->next)
        link->next->link = link->link;
    pthread_mutex_unlock(&links);
    pp_add_seq_cst(&n_links, -1u);
    free(link);
}

/* ---- the worker's side ---- */

void pp_link_enter(int fd) {
    pthread_mutex_lock(&upstream);
    upstream_number = pp_file_number(fd);
    pp_store_seq_cst(&upstream_fd, fd);
    pthread_mutex_unlock(&upstream);
}

bool pp_upstream_lock(void) {
    if (pp_load_seq_cst(&upstream_fd) < 0)
        return false;
    pthread_mutex_lock(&upstream);
    return true;
}

void pp_upstream_unlock(void) { pthread_mutex_unlock(&upstream); }

/* Called with the lock. -1: a program has closed descriptors that are not its own. */
static int own_upstream(void) {
    int fd = pp_load_seq_cst(&upstream_fd);
    return fd >= 0 && pp_file_number(fd) == upstream_number ? fd : -1;
}

int pp_upstream_want(const unsigned char *id, int *passed) {
    int fd = own_upstream();
    message_t message;
    if (fd < 0)
        return EBADF;
    if (send_message(fd, WANT, false, id, -1, 0) < 0)
        return errno;
    int error = receive_message(fd, &message, passed, 0);
    if (error)
        return error;
    return *passed >= 0 ? 0 : message.what == HAVE ? EMFILE : ESTALE;
}

int pp_upstream_give(const unsigned char *id, bool readonly, int passed) {
    int fd = own_upstream();
    if (fd < 0)
        return EBADF;
    return send_message(fd, GIVE, readonly, id, passed, 0) < 0 ? errno : 0;
}

/* If there is no room, the parent keeps its reference until this worker has ended. */
void pp_upstream_drop(const unsigned char *id) {
    int fd = own_upstream();
    if (fd >= 0)
        (void)!send_message(fd, DROP, false, id, -1, MSG_DONTWAIT);
}

/* ---- forks ---- */

void pp_links_before_fork(void) { pthread_mutex_lock(&links); }

void pp_links_after_fork(void) { pthread_mutex_unlock(&links); }

/* All links belong to the parent. */
void pp_links_after_fork_in_child(void) {
    pthread_mutex_init(&upstream, NULL);
    int fd = own_upstream();
    pp_store_seq_cst(&upstream_fd, -1);
    if (fd >= 0)
        close(fd);
    for (pp_link_t *link = all; link; link = link->next)
        close_end(link);
    pthread_mutex_unlock(&links);
}
