/* The traditional PKZIP encryption ("ZipCrypto"), one byte at a time.

   Source: PKWARE's APPNOTE.TXT, section 6.1 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT).

   The state is three 32-bit keys. A byte of the key stream comes from the low half of key2 alone:

       k = (key2 & 0xffff) | 2        plain = cipher ^ (k * (k ^ 1) >> 8 & 0xff)

   and then the plain byte updates all three keys:

       key0 = crc(key0, plain)
       key1 = (key1 + (key0 & 0xff)) * 134775813 + 1
       key2 = crc(key2, key1 >> 24)

   where crc(key, byte) = key >> 8 ^ table[(key ^ byte) & 0xff] is one step of CRC-32. Each byte depends on the
   previous one and takes about 26 cycles on any processor, so a single member cannot be decrypted fast. But
   the initial keys of all members depend only on the password, so many members can be decrypted in parallel. */

#ifndef ZIPCRYPTO_CIPHER_H
#define ZIPCRYPTO_CIPHER_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 table for the polynomial 0xedb88320, filled by zipcrypto_init. */
extern uint32_t zipcrypto_crc[256];

struct zipcrypto_keys {
    uint32_t key0, key1, key2;
};

static inline uint8_t zipcrypto_step(struct zipcrypto_keys *keys, uint8_t cipher)
{
    uint32_t k = (keys->key2 & 0xffff) | 2;
    uint8_t plain = (uint8_t)(cipher ^ (k * (k ^ 1)) >> 8);
    keys->key0 = keys->key0 >> 8 ^ zipcrypto_crc[(keys->key0 ^ plain) & 0xff];
    keys->key1 = (keys->key1 + (keys->key0 & 0xff)) * 134775813u + 1;
    keys->key2 = keys->key2 >> 8 ^ zipcrypto_crc[(keys->key2 ^ keys->key1 >> 24) & 0xff];
    return plain;
}

#endif
