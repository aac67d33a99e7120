/* Compares every kernel with the byte-wise cipher for all numbers of busy lanes; for builds with sanitizers.

   Each stream lies at the very end of a block of its own, so that a sanitizer sees any access beyond it.
   Prints the kernels that were checked; exits with 1 at the first wrong byte or key. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define MOST_STREAMS 80
#define LONGEST 300

static uint32_t seed = 1;

static uint32_t random_number(void)
{
    seed ^= seed << 13; /* xorshift32: G. Marsaglia, "Xorshift RNGs", 2003 */
    seed ^= seed >> 17;
    return seed ^= seed << 5;
}

static int check(const struct zipcrypto_kernel *kernel, size_t count, size_t most)
{
    struct zipcrypto_stream streams[MOST_STREAMS], expected[MOST_STREAMS];
    uint8_t *blocks[MOST_STREAMS], *plain[MOST_STREAMS];
    size_t sizes[MOST_STREAMS];
    int wrong = 0;
    for (size_t i = 0; i < count; i++) {
        sizes[i] = random_number() % (most + 1);
        blocks[i] = malloc(sizes[i] + 1);
        plain[i] = malloc(sizes[i] + 1);
        if (blocks[i] == NULL || plain[i] == NULL)
            return 1;
        streams[i].at = blocks[i] + 1;
        streams[i].left = sizes[i];
        streams[i].keys.key0 = random_number();
        streams[i].keys.key1 = random_number();
        streams[i].keys.key2 = random_number();
        expected[i] = streams[i];
        for (size_t j = 0; j < sizes[i]; j++) {
            streams[i].at[j] = (uint8_t)random_number();
            plain[i][j] = zipcrypto_step(&expected[i].keys, streams[i].at[j]);
        }
    }
    zipcrypto_decrypt(kernel, streams, count);
    for (size_t i = 0; i < count; i++) {
        wrong |= memcmp(blocks[i] + 1, plain[i], sizes[i]) != 0 || streams[i].left != 0;
        wrong |= memcmp(&streams[i].keys, &expected[i].keys, sizeof expected[i].keys) != 0;
        free(blocks[i]);
        free(plain[i]);
    }
    return wrong;
}

int main(void)
{
    zipcrypto_init();
    for (const struct zipcrypto_kernel *kernel = zipcrypto_kernels; kernel->name != NULL; kernel++) {
        if (!kernel->supported())
            continue;
        for (size_t count = 0; count <= MOST_STREAMS; count++)
            for (size_t most = 0; most <= LONGEST; most += 1 + most / 8)
                if (check(kernel, count, most)) {
                    printf("%s is wrong for %zu streams of up to %zu bytes\n", kernel->name, count, most);
                    return 1;
                }
        puts(kernel->name);
    }
    return 0;
}
