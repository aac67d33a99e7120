/* Preloaded library with the flock of Linux on NFSv4: a shared lock needs a readable descriptor and an exclusive
   lock needs a writable one; other descriptors fail with EBADF (nfs4_proc_setlk). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

int flock(int descriptor, int operation)
{
    int mode = fcntl(descriptor, F_GETFL) & O_ACCMODE;
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");

    if (((operation & LOCK_SH) && mode == O_WRONLY) || ((operation & LOCK_EX) && mode == O_RDONLY)) {
        errno = EBADF;
        return -1;
    }
    return real(descriptor, operation);
}
