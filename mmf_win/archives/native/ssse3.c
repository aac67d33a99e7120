/* 16 streams in parallel, for processors with SSSE3 (since 2006). */

#include "kernels.h"

#ifdef NATIVE_X86
#include <immintrin.h>

#define RUN zipcrypto_run_ssse3
#define LANES 16
#define TARGET "ssse3"
#define VECTOR __m128i
#define OP(name) _mm_##name
#define BITS(name) _mm_##name##_si128
#define LOAD_ROW(at, i) _mm_loadu_si128((const __m128i *)(at)[i])
#define STORE_ROW(at, i, row) _mm_storeu_si128((__m128i *)(at)[i], row)
#define BROADCAST(bytes) _mm_loadu_si128((const __m128i *)(bytes))
#include "vector.h"

#endif
