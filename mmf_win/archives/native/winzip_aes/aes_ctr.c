#include "aes_ctr.h"

#include "../cpu.h"

#ifdef NATIVE_X86
#include <immintrin.h>
#include <string.h>

#define TARGET "aes,sse2"
#define SIDE_BY_SIDE 8 /* an instruction takes some four cycles, but two can begin in each */
#define MOST_ROUNDS 14

int aes_ctr_supported(void)
{
    return cpu_has_aes();
}

/* The S-box on each byte of a word. */
INLINE uint32_t substitute(uint32_t word)
{
    return (uint32_t)_mm_cvtsi128_si32(_mm_aeskeygenassist_si128(_mm_set1_epi32((int)word), 0));
}

/* FIPS 197, section 5.2; a word's first byte is its lowest here. Returns the number of rounds. */
INLINE int expand_key(const uint8_t *key, size_t key_size, __m128i round_keys[MOST_ROUNDS + 1])
{
    int key_words = (int)key_size / 4, rounds = key_words + 6, words = 4 * (rounds + 1);
    uint32_t w[4 * (MOST_ROUNDS + 1)], constant = 1;
    memcpy(w, key, key_size);
    for (int i = key_words; i < words; i++) {
        uint32_t word = w[i - 1];
        if (i % key_words == 0) {
            word = substitute(word);
            word = (word >> 8 | word << 24) ^ constant;
            constant = constant << 1 ^ (constant & 0x80 ? 0x11b : 0);
        } else if (key_words == 8 && i % 8 == 4) {
            word = substitute(word);
        }
        w[i] = w[i - key_words] ^ word;
    }
    for (int i = 0; i <= rounds; i++)
        round_keys[i] = _mm_loadu_si128((const __m128i *)&w[4 * i]);
    return rounds;
}

/* The key stream for blocks that lie side by side. */
INLINE void key_stream(const __m128i *round_keys, int rounds, uint64_t counter, __m128i *blocks, int count)
{
    for (int i = 0; i < count; i++)
        blocks[i] = _mm_xor_si128(_mm_set_epi64x(0, (long long)(counter + (uint64_t)i)), round_keys[0]);
    for (int round = 1; round < rounds; round++)
        for (int i = 0; i < count; i++)
            blocks[i] = _mm_aesenc_si128(blocks[i], round_keys[round]);
    for (int i = 0; i < count; i++)
        blocks[i] = _mm_aesenclast_si128(blocks[i], round_keys[rounds]);
}

FOR_TARGET void aes_ctr(const uint8_t *key, size_t key_size, uint64_t counter, uint8_t *data, size_t size)
{
    __m128i round_keys[MOST_ROUNDS + 1], blocks[SIDE_BY_SIDE];
    int rounds = expand_key(key, key_size, round_keys);
    for (; size >= sizeof blocks; size -= sizeof blocks, data += sizeof blocks, counter += SIDE_BY_SIDE) {
        key_stream(round_keys, rounds, counter, blocks, SIDE_BY_SIDE);
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            __m128i *at = (__m128i *)data + i;
            _mm_storeu_si128(at, _mm_xor_si128(_mm_loadu_si128(at), blocks[i]));
        }
    }
    for (; size > 0; counter++) {
        uint8_t stream[16];
        size_t now = size < sizeof stream ? size : sizeof stream;
        key_stream(round_keys, rounds, counter, blocks, 1);
        _mm_storeu_si128((__m128i *)stream, blocks[0]);
        for (size_t i = 0; i < now; i++)
            *data++ ^= stream[i];
        size -= now;
    }
}

#else

int aes_ctr_supported(void)
{
    return 0;
}

void aes_ctr(const uint8_t *key, size_t key_size, uint64_t counter, uint8_t *data, size_t size)
{
    (void)key, (void)key_size, (void)counter, (void)data, (void)size; /* never called: it is not supported */
}

#endif
