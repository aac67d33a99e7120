#include "pbkdf2.h"

#include <string.h>

#define FUNCTION static inline
#define WORDS uint32_t
#define ADD(a, b) ((a) + (b))
#define XOR(a, b) ((a) ^ (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define LEFT(a, bits) ((a) << (bits))
#define RIGHT(a, bits) ((a) >> (bits))
#define ALL(word) ((uint32_t)(word))
#define LOAD(at) (*(at))
#define STORE(at, words) (*(at) = (words))
#include "sha1.h"

/* Takes a block of 64 bytes into the state. */
static void take_block(uint32_t state[5], const uint8_t bytes[64])
{
    uint32_t w[16];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 | (uint32_t)bytes[4 * i + 2] << 8 |
               bytes[4 * i + 3];
    sha1_block(state, w);
}

void pbkdf2_set_password(struct pbkdf2_password *password, const uint8_t *bytes, size_t size)
{
    static const uint32_t initial[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    uint8_t inner[64], outer[64];
    memset(inner, 0x36, sizeof inner);
    memset(outer, 0x5c, sizeof outer);
    for (size_t i = 0; i < size; i++) {
        inner[i] ^= bytes[i];
        outer[i] ^= bytes[i];
    }
    memcpy(password->inner, initial, sizeof initial);
    memcpy(password->outer, initial, sizeof initial);
    take_block(password->inner, inner);
    take_block(password->outer, outer);
}

/* u = hmac(password, salt || number) */
static void first_round(const struct pbkdf2_password *password, const struct pbkdf2_chain *chain, uint32_t u[5])
{
    uint8_t block[64] = {0};
    size_t size = chain->salt_size + 4, bits = (64 + size) * 8;
    memcpy(block, chain->salt, chain->salt_size);
    for (int i = 0; i < 4; i++)
        block[chain->salt_size + i] = (uint8_t)(chain->number >> (24 - 8 * i));
    block[size] = 0x80;
    block[62] = (uint8_t)(bits >> 8);
    block[63] = (uint8_t)bits;
    memcpy(u, password->inner, sizeof password->inner);
    take_block(u, block);
    sha1_hash_again(password->outer, u);
}

void pbkdf2_derive(const struct pbkdf2_kernel *kernel, const struct pbkdf2_password *password, unsigned rounds,
                   const struct pbkdf2_chain *chains, size_t count)
{
    struct pbkdf2_lanes lanes = {{{0}}, {{0}}};
    while (count > 0) {
        size_t busy = count < kernel->lanes ? count : kernel->lanes;
        for (size_t lane = 0; lane < busy; lane++) {
            uint32_t u[5];
            first_round(password, &chains[lane], u);
            for (int i = 0; i < 5; i++)
                lanes.u[i][lane] = lanes.key[i][lane] = u[i];
        }
        kernel->run(password, rounds - 1, &lanes);
        for (size_t lane = 0; lane < busy; lane++)
            for (int i = 0; i < PBKDF2_BLOCK; i++)
                chains[lane].key[i] = (uint8_t)(lanes.key[i / 4][lane] >> (24 - 8 * (i % 4)));
        chains += busy;
        count -= busy;
    }
}

const struct pbkdf2_kernel pbkdf2_kernels[] = {
#ifdef NATIVE_X86
#ifdef NATIVE_AVX2
    {"avx2", 8, cpu_has_avx2, pbkdf2_run_avx2},
#endif
    {"sse2", 4, cpu_always, pbkdf2_run_sse2},
#endif
    {"scalar", 1, cpu_always, pbkdf2_rounds},
    {NULL, 0, NULL, NULL},
};
