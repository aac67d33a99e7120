/* Eight chains side by side, for processors with AVX2 (since 2013). */

#include "pbkdf2.h"

#ifdef NATIVE_AVX2
#include <immintrin.h>

#define TARGET "avx2"
#define FUNCTION INLINE
#define WORDS __m256i
#define ADD(a, b) _mm256_add_epi32(a, b)
#define XOR(a, b) _mm256_xor_si256(a, b)
#define AND(a, b) _mm256_and_si256(a, b)
#define OR(a, b) _mm256_or_si256(a, b)
#define LEFT(a, bits) _mm256_slli_epi32(a, bits)
#define RIGHT(a, bits) _mm256_srli_epi32(a, bits)
#define ALL(word) _mm256_set1_epi32((int)(word))
#define LOAD(at) _mm256_loadu_si256((const __m256i *)(at))
#define STORE(at, words) _mm256_storeu_si256((__m256i *)(at), words)
#include "sha1.h"

FOR_TARGET void pbkdf2_run_avx2(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes)
{
    pbkdf2_rounds(password, rounds, lanes);
}

#endif
