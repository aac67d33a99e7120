/* 32 streams in parallel, for processors with AVX2 (since 2013). */

#include "kernels.h"

#ifdef NATIVE_AVX2
#include <immintrin.h>

#define RUN zipcrypto_run_avx2
#define LANES 32
#define TARGET "avx2"
#define VECTOR __m256i
#define OP(name) _mm256_##name
#define BITS(name) _mm256_##name##_si256
/* A row has a block of stream i in its lower half and one of stream i + 16 in its upper half. */
#define LOAD_ROW(at, i)                                                                     \
    _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(at)[i])), \
                            _mm_loadu_si128((const __m128i *)(at)[(i) + 16]), 1)
#define STORE_ROW(at, i, row)                                                     \
    (_mm_storeu_si128((__m128i *)(at)[i], _mm256_castsi256_si128(row)),           \
     _mm_storeu_si128((__m128i *)(at)[(i) + 16], _mm256_extracti128_si256(row, 1)))
#define BROADCAST(bytes) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(bytes)))
#include "vector.h"

#endif
