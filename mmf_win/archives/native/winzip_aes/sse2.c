/* Four chains side by side, for every x86-64 processor. */

#include "pbkdf2.h"

#ifdef NATIVE_X86
#include <immintrin.h>

#define TARGET "sse2"
#define FUNCTION INLINE
#define WORDS __m128i
#define ADD(a, b) _mm_add_epi32(a, b)
#define XOR(a, b) _mm_xor_si128(a, b)
#define AND(a, b) _mm_and_si128(a, b)
#define OR(a, b) _mm_or_si128(a, b)
#define LEFT(a, bits) _mm_slli_epi32(a, bits)
#define RIGHT(a, bits) _mm_srli_epi32(a, bits)
#define ALL(word) _mm_set1_epi32((int)(word))
#define LOAD(at) _mm_loadu_si128((const __m128i *)(at))
#define STORE(at, words) _mm_storeu_si128((__m128i *)(at), words)
#include "sha1.h"

FOR_TARGET void pbkdf2_run_sse2(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes)
{
    pbkdf2_rounds(password, rounds, lanes);
}

#endif
