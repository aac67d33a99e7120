/* Every kernel against the one that runs everywhere, and the cipher in one piece against byte by byte, for builds
   with sanitizers. The tests in Python compare them with other libraries.

   What is written lies at the very end of a block of its own, so that a sanitizer sees any access beyond it.
   Prints the kernels that were checked; exits with 1 at the first wrong byte. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aes_ctr.h"
#include "pbkdf2.h"

#define MOST_CHAINS 20
#define ROUNDS 3
#define LONGEST 300

static uint32_t seed = 1;

static uint32_t random_number(void)
{
    seed ^= seed << 13; /* xorshift32: G. Marsaglia, "Xorshift RNGs", 2003 */
    seed ^= seed >> 17;
    return seed ^= seed << 5;
}

static void fill(uint8_t *bytes, size_t size)
{
    while (size > 0)
        bytes[--size] = (uint8_t)random_number();
}

static int check_chains(const struct pbkdf2_kernel *kernel, const struct pbkdf2_kernel *plain, size_t count)
{
    struct pbkdf2_chain chains[MOST_CHAINS], expected[MOST_CHAINS];
    struct pbkdf2_password password;
    uint8_t bytes[PBKDF2_MOST_KEY], salts[MOST_CHAINS][PBKDF2_MOST_SALT], keys[MOST_CHAINS][PBKDF2_BLOCK];
    int wrong = 0;
    fill(bytes, sizeof bytes);
    pbkdf2_set_password(&password, bytes, random_number() % (PBKDF2_MOST_KEY + 1));
    for (size_t i = 0; i < count; i++) {
        fill(salts[i], sizeof salts[i]);
        chains[i].salt = salts[i];
        chains[i].salt_size = random_number() % (PBKDF2_MOST_SALT + 1);
        chains[i].number = random_number();
        chains[i].key = malloc(PBKDF2_BLOCK);
        if (chains[i].key == NULL)
            return 1;
        expected[i] = chains[i];
        expected[i].key = keys[i];
    }
    pbkdf2_derive(kernel, &password, ROUNDS, chains, count);
    pbkdf2_derive(plain, &password, ROUNDS, expected, count);
    for (size_t i = 0; i < count; i++) {
        wrong |= memcmp(chains[i].key, keys[i], PBKDF2_BLOCK) != 0;
        free(chains[i].key);
    }
    return wrong;
}

static int check_cipher(size_t key_size, size_t size)
{
    uint8_t key[32], expected[LONGEST], *data = malloc(size + 1);
    int wrong;
    if (data == NULL)
        return 1;
    fill(key, sizeof key);
    fill(data, size);
    memcpy(expected, data, size);
    aes_ctr(key, key_size, 1, data, size);
    for (size_t i = 0; i < size; i++) {
        uint8_t block[16] = {0};
        block[i % 16] = expected[i];
        aes_ctr(key, key_size, 1 + i / 16, block, i % 16 + 1);
        expected[i] = block[i % 16];
    }
    wrong = memcmp(data, expected, size) != 0;
    free(data);
    return wrong;
}

int main(void)
{
    const struct pbkdf2_kernel *plain = pbkdf2_kernels;
    while (plain[1].name != NULL)
        plain++;
    for (const struct pbkdf2_kernel *kernel = pbkdf2_kernels; kernel->name != NULL; kernel++) {
        if (!kernel->supported())
            continue;
        for (size_t count = 0; count <= MOST_CHAINS; count++)
            if (check_chains(kernel, plain, count)) {
                printf("%s is wrong for %zu chains\n", kernel->name, count);
                return 1;
            }
        puts(kernel->name);
    }
    for (size_t key_size = 16; aes_ctr_supported() && key_size <= 32; key_size += 8)
        for (size_t size = 0; size < LONGEST; size++)
            if (check_cipher(key_size, size)) {
                printf("the cipher is wrong for %zu bytes\n", size);
                return 1;
            }
    return 0;
}
