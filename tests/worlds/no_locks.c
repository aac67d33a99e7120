/* Preloaded library in which no file below $NO_LOCKS can be locked, as on a network drive without a lock service. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int flock(int descriptor, int operation)
{
    char link[64], path[4096] = "";
    const char *folder = getenv("NO_LOCKS");
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");

    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (folder && readlink(link, path, sizeof path - 1) > 0 && strncmp(path, folder, strlen(folder)) == 0) {
        errno = ENOLCK;
        return -1;
    }
    return real(descriptor, operation);
}
