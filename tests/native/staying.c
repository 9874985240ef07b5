/* An extension module that does not support interpreters, and whose threads and handlers outlive them; with LIBRARY, a library that
 * starts threads for it, as Boost's does. `in` and `out` are descriptors, `word` is the address of an int. */
#ifndef LIBRARY
#include <Python.h>   /* first, as it asks for */
#endif

#include <pthread.h>
#include <stdlib.h>

typedef struct { void (*run)(void); volatile int *word; } start_t;
void start_elsewhere(void (*run)(void), volatile int *word);
void register_elsewhere(void (*run)(void));
void start_in_cxx(void (*run)(void));

#ifdef LIBRARY

static void *begin(void *arg) {
    start_t *start = arg;
    while (start->word && *start->word == 0) {}
    start->run();
    free(start);   /* so the call before it is not the last */
    return NULL;
}

/* Starts a thread that calls `run`, once `word`, if there is one, is set. */
void start_elsewhere(void (*run)(void), volatile int *word) {
    pthread_t thread;
    start_t *start = malloc(sizeof *start);
    *start = (start_t){run, word};
    pthread_create(&thread, NULL, begin, start);
}

static void (*registered)(void);
void register_elsewhere(void (*run)(void)) { registered = run; }
int is_registered(void) { return registered != NULL; }
void call_registered(void) { registered(); }

#else

#include <signal.h>
#include <unistd.h>

static int in, out;
static volatile int *word;

static void say(char letter) { (void)!write(out, &letter, 1); }

/* Sleeps in the C library, and answers what wakes it. */
static void sleep_for_ever(void) {
    char letter;
    say('b');
    while (read(in, &letter, 1) == 1)
        say(letter);
}

static void *sleep_in_thread(void *ignored) {
    sleep_for_ever();
    return ignored;
}

/* Runs in this library until the word is set. */
static void *spin(void *ignored) {
    say('b');
    while (*word == 0) {}
    say('w');
    for (;;)
        pause();
    return ignored;
}

static void handle(int signal) { say(signal == SIGUSR1 ? 'w' : '?'); }
static void note_fork(void) { say('f'); }
static void answer(void) { say('w'); }

static pthread_t joined;
static int bell[2];
static void *sleep_till_end(void *ignored) {
    char letter;
    (void)!read(bell[0], &letter, 1);
    return ignored;
}

/* Ends a thread when this library is closed, as libuv does. */
__attribute__((destructor)) static void end(void) {
    if (joined == 0)
        return;
    (void)!write(bell[1], "e", 1);
    pthread_join(joined, NULL);
    say('e');
}

static int begin_how(const char *how) {
    pthread_t thread;
    if (strcmp(how, "ends") == 0)
        return pipe(bell) || pthread_create(&joined, NULL, sleep_till_end, NULL);
    if (strcmp(how, "sleeps") == 0)
        return pthread_create(&thread, NULL, sleep_in_thread, NULL);
    if (strcmp(how, "python") == 0)
        return PyThread_start_new_thread((void (*)(void *))(void (*)(void))sleep_for_ever, NULL) == PYTHREAD_INVALID_THREAD_ID;
    if (strcmp(how, "spins") == 0)
        return pthread_create(&thread, NULL, spin, NULL);
    if (strcmp(how, "handles") == 0)
        return sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handle}, NULL);
    if (strcmp(how, "forks") == 0)
        return pthread_atfork(note_fork, NULL, NULL);
    if (strcmp(how, "elsewhere") == 0)
        start_elsewhere(sleep_for_ever, NULL);
    if (strcmp(how, "begins") == 0)
        start_elsewhere(sleep_for_ever, word);
    if (strcmp(how, "refers") == 0)
        register_elsewhere(answer);
    if (strcmp(how, "takes back") == 0) {
        register_elsewhere(answer);
        register_elsewhere(NULL);
    }
#ifdef CXX
    if (strcmp(how, "c++") == 0)
        start_in_cxx(sleep_for_ever);
#endif
    return 0;
}

/* begin(how, in, out, word): a thread that says "b" once it is here, and answers when it wakes. */
static PyObject *begin(PyObject *module, PyObject *args) {
    const char *how;
    unsigned long long address;
    (void)module;
    if (!PyArg_ParseTuple(args, "siiK", &how, &in, &out, &address))
        return NULL;
    word = (volatile int *)(uintptr_t)address;
    return PyBool_FromLong(begin_how(how) == 0);
}

static PyMethodDef functions[] = {{"begin", begin, METH_VARARGS, "Begins what outlives the interpreter."}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "staying", .m_size = -1, .m_methods = functions};
PyMODINIT_FUNC PyInit_staying(void) { return PyModule_Create(&def); }

#endif
