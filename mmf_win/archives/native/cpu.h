/* What this processor has, beyond what all of its kind have. */

#ifndef NATIVE_CPU_H
#define NATIVE_CPU_H

#if defined(__x86_64__) || defined(_M_X64)
#define NATIVE_X86 1

/* On Windows, gcc takes the stack for better aligned than it is and crashes with AVX registers on it
   (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412). A build that has the assembler use moves for any alignment
   (-Wa,-muse-unaligned-vector-move) may say so. */
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
    if (!(info[2] >> 27 & 1) || (_xgetbv(0) & 6) != 6) /* the system must save the wide registers, too */
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

/* Inlined into a function for the same processor; TARGET names what that one has. */
#if defined(__GNUC__)
#define FOR_TARGET __attribute__((target(TARGET)))
#define INLINE static inline __attribute__((always_inline, target(TARGET)))
#elif defined(_MSC_VER)
#define FOR_TARGET
#define INLINE static __forceinline
#endif

#endif
