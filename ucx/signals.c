//go:build linux && cgo && ucx

// libucs takes four fatal signals in a constructor of its own, before main, so
// neither settings nor the environment of this process can prevent it. Go takes
// them again, but hands faults inside C to the handler it found: the report
// would be UCX's, followed by UCX's idea of how to end. This constructor belongs
// to the executable and runs after those of its libraries and before Go's
// runtime. It touches a handler only where that handler lies in libucs.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

__attribute__((constructor)) static void kx_default_signals(void) {
    static const int taken[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        struct sigaction now;
        Dl_info where;
        if (sigaction(taken[i], NULL, &now) != 0) continue;
        void *handler = (now.sa_flags & SA_SIGINFO) ? (void *)now.sa_sigaction : (void *)now.sa_handler;
        if (handler == (void *)SIG_DFL || handler == (void *)SIG_IGN) continue;
        if (dladdr(handler, &where) == 0 || where.dli_fname == NULL) continue;
        const char *name = strrchr(where.dli_fname, '/');
        name = name == NULL ? where.dli_fname : name + 1;
        if (strncmp(name, "libucs.so", 9) != 0) continue;
        struct sigaction def = {.sa_handler = SIG_DFL};
        sigemptyset(&def.sa_mask);
        sigaction(taken[i], &def, NULL);
    }
}
