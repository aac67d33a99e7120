/* AES in WinZip's counter mode, by the processor's own instructions.

   Sources: FIPS 197 (AES); https://www.winzip.com/en/support/aes-encryption/ for the counter, which is a
   little-endian number that is 1 for a member's first 16 bytes. */

#ifndef AES_CTR_H
#define AES_CTR_H

#include <stddef.h>
#include <stdint.h>

/* Whether this build and this processor can. */
int aes_ctr_supported(void);

/* Encrypts or decrypts in place, which is the same. The key has 16, 24 or 32 bytes; `counter` is that of the first
   16 bytes of the data. */
void aes_ctr(const uint8_t *key, size_t key_size, uint64_t counter, uint8_t *data, size_t size);

#endif
