/* Kernels decrypt blocks of several streams in parallel; zipcrypto_decrypt distributes streams over lanes.

   A stream is a sequence of encrypted bytes with the keys for its first byte: a member or a piece of one. A
   kernel has a fixed number of lanes with one stream each. It processes complete blocks only, so it never reads
   or writes beyond the end of a stream; the rest of a stream is decrypted byte by byte. */

#ifndef ZIPCRYPTO_KERNELS_H
#define ZIPCRYPTO_KERNELS_H

#include "cpu.h"
#include "cipher.h"

#define ZIPCRYPTO_BLOCK 16 /* bytes of each stream that a kernel decrypts per step */
#define ZIPCRYPTO_MAX_LANES 32

/* Data to decrypt in place. At the end, `at` points behind it, `left` is 0, and `keys` is the final state. */
struct zipcrypto_stream {
    uint8_t *at;
    size_t left;
    struct zipcrypto_keys keys;
};

/* State of the lanes of a kernel. An idle lane has a stride of 0 and works on an unused block. */
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
    /* Decrypts this number of blocks in every lane and updates `at` and the keys. */
    void (*run)(struct zipcrypto_lanes *lanes, size_t blocks);
};

/* All kernels of this build, fastest first, followed by one without a name. The last ones run everywhere. */
extern const struct zipcrypto_kernel zipcrypto_kernels[];

/* Must be called once before all other functions. */
void zipcrypto_init(void);

/* Decrypts all streams. They are assigned to lanes in order, so the largest should come first. */
void zipcrypto_decrypt(const struct zipcrypto_kernel *kernel, struct zipcrypto_stream *streams, size_t count);

#ifdef NATIVE_X86
void zipcrypto_run_ssse3(struct zipcrypto_lanes *lanes, size_t blocks);
#endif
#ifdef NATIVE_AVX2
void zipcrypto_run_avx2(struct zipcrypto_lanes *lanes, size_t blocks);
#endif

#endif
