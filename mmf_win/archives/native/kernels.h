/* Kernels decrypt blocks of several streams side by side; zipcrypto_decrypt hands them any number of streams.

   A stream is a run of encrypted bytes with the keys for its first one: a member, or a piece of one. A kernel
   has a fixed number of lanes and holds one stream in each. It touches whole blocks only, so it never reads
   or writes beyond a stream's end; what is left of a stream is decrypted byte by byte. */

#ifndef ZIPCRYPTO_KERNELS_H
#define ZIPCRYPTO_KERNELS_H

#include "cpu.h"
#include "cipher.h"

#define ZIPCRYPTO_BLOCK 16 /* bytes of each stream that a kernel decrypts at once */
#define ZIPCRYPTO_MAX_LANES 32

/* Decrypted in place; at the end, `at` is behind it, `left` is 0, and `keys` are those for what follows. */
struct zipcrypto_stream {
    uint8_t *at;
    size_t left;
    struct zipcrypto_keys keys;
};

/* What is in the lanes of a kernel. An idle lane has a stride of 0 and works on a block that nobody reads. */
struct zipcrypto_lanes {
    uint8_t *at[ZIPCRYPTO_MAX_LANES];
    size_t stride[ZIPCRYPTO_MAX_LANES];
    uint32_t key0[ZIPCRYPTO_MAX_LANES];
    uint32_t key1[ZIPCRYPTO_MAX_LANES];
    uint32_t key2[ZIPCRYPTO_MAX_LANES];
};

struct zipcrypto_kernel {
    const char *name;
    unsigned lanes;
    int (*supported)(void);
    /* Decrypts so many blocks in every lane and moves `at` and the keys on. */
    void (*run)(struct zipcrypto_lanes *lanes, size_t blocks);
};

/* All kernels of this build, fastest first, ended by one without a name. The last real ones run everywhere. */
extern const struct zipcrypto_kernel zipcrypto_kernels[];

/* Once, before anything else. */
void zipcrypto_init(void);

/* Decrypts all streams. They take the lanes in their order, so the largest should come first. */
void zipcrypto_decrypt(const struct zipcrypto_kernel *kernel, struct zipcrypto_stream *streams, size_t count);

#ifdef NATIVE_X86
void zipcrypto_run_ssse3(struct zipcrypto_lanes *lanes, size_t blocks);
#endif
#ifdef NATIVE_AVX2
void zipcrypto_run_avx2(struct zipcrypto_lanes *lanes, size_t blocks);
#endif

#endif
