/* Detection of optional features of the processor. */

#ifndef NATIVE_CPU_H
#define NATIVE_CPU_H

#if defined(__x86_64__) || defined(_M_X64)
#define NATIVE_X86 1

/* On Windows, gcc assumes a larger stack alignment than there is, so AVX registers on the stack crash
   (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412). A build with unaligned moves
   (-Wa,-muse-unaligned-vector-move) may override this. */
#if !defined(__MINGW32__) || defined(__clang__) || defined(NATIVE_UNALIGNED_MOVES)
#define NATIVE_AVX2 1
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>

static inline int cpu_has_ssse3(void)
{
    int info[4];
    __cpuid(info, 1);
    return info[2] >> 9 & 1;
}

static inline int cpu_has_avx2(void)
{
    int info[4];
    __cpuid(info, 1);
    if (!(info[2] >> 27 & 1) || (_xgetbv(0) & 6) != 6) /* the system must also save the wide registers */
        return 0;
    __cpuidex(info, 7, 0);
    return info[1] >> 5 & 1;
}
#else
static inline int cpu_has_ssse3(void)
{
    return __builtin_cpu_supports("ssse3") != 0;
}

static inline int cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#endif
#endif

static inline int cpu_always(void)
{
    return 1;
}

/* For functions that are inlined into a function with the same TARGET. */
#if defined(__GNUC__)
#define FOR_TARGET __attribute__((target(TARGET)))
#define INLINE static inline __attribute__((always_inline, target(TARGET)))
#elif defined(_MSC_VER)
#define FOR_TARGET
#define INLINE static __forceinline
#endif

#endif
