/* PBKDF2-HMAC-SHA1, many chains side by side.

   Sources: RFC 2898, section 5.2 (PBKDF2), RFC 2104 (HMAC), RFC 3174 (SHA-1).

   PBKDF2 makes a key in blocks of 20 bytes. Each is a chain of its own:

       u = hmac(password, salt || number of the block)        key = u
       and then, for each further round,
       u = hmac(password, u)                                  key = key ^ u

   The HMAC of so few bytes is SHA-1 of one more block after the password's padded block, twice; the states after
   the password's blocks are made once. So a round is two steps of SHA-1. Each needs the one before, but chains do
   not need each other: a kernel holds one in each lane of its registers. */

#ifndef PBKDF2_H
#define PBKDF2_H

#include <stddef.h>
#include <stdint.h>

#include "../cpu.h"

#define PBKDF2_BLOCK 20     /* bytes of a key that a chain makes */
#define PBKDF2_MOST_KEY 64  /* bytes of a password; a longer one is replaced by its SHA-1 before */
#define PBKDF2_MOST_SALT 51 /* bytes of a salt, so that one block of SHA-1 takes it */
#define PBKDF2_MAX_LANES 8

/* The states of SHA-1 after the password's blocks. */
struct pbkdf2_password {
    uint32_t inner[5], outer[5];
};

struct pbkdf2_chain {
    const uint8_t *salt;
    size_t salt_size;
    uint32_t number; /* of the block, from 1 on */
    uint8_t *key;    /* gets 20 bytes */
};

/* By word, then by lane. */
struct pbkdf2_lanes {
    uint32_t u[5][PBKDF2_MAX_LANES];
    uint32_t key[5][PBKDF2_MAX_LANES];
};

struct pbkdf2_kernel {
    const char *name;
    unsigned lanes;
    int (*supported)(void);
    /* Does so many rounds after the first one in every lane. */
    void (*run)(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes);
};

/* All kernels of this build, fastest first, ended by one without a name. The last real one runs everywhere. */
extern const struct pbkdf2_kernel pbkdf2_kernels[];

/* At most PBKDF2_MOST_KEY bytes. */
void pbkdf2_set_password(struct pbkdf2_password *password, const uint8_t *bytes, size_t size);

/* Derives the keys of all chains by so many rounds, at least one. */
void pbkdf2_derive(const struct pbkdf2_kernel *kernel, const struct pbkdf2_password *password, unsigned rounds,
                   const struct pbkdf2_chain *chains, size_t count);

#ifdef NATIVE_X86
void pbkdf2_run_sse2(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes);
#endif
#ifdef NATIVE_AVX2
void pbkdf2_run_avx2(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes);
#endif

#endif
