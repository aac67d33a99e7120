/* A kernel in vector registers, written once for two widths; ssse3.c and avx2.c include it.

   Byte p of a key of all lanes is in one register, the key's plane p. So a shift by 8 bits costs nothing, and
   a step of CRC-32 can look up its table in registers: the table is linear over GF(2), so the entry of a byte
   is that of its low nibble xor that of its high one, and looking up 16 entries of one plane is one shuffle.

   The multiplications need 16 bits: planes are widened by interleaving two of them, low and high half of a
   register apart, and narrowed again by packing, which undoes that order. */

#define XOR(a, b) BITS(xor)(a, b)
#define AND(a, b) BITS(and)(a, b)

/* zipcrypto_crc by byte planes and nibbles: [plane][0] for the low nibble, [plane][1] for the high one. */
struct tables {
    VECTOR nibble[4][2];
};

INLINE void fill_tables(struct tables *tables)
{
    uint8_t entries[16];
    for (int plane = 0; plane < 4; plane++)
        for (int high = 0; high < 2; high++) {
            for (int i = 0; i < 16; i++)
                entries[i] = (uint8_t)(zipcrypto_crc[high ? i << 4 : i] >> 8 * plane);
            tables->nibble[plane][high] = BROADCAST(entries);
        }
}

/* key = crc(key, byte) */
INLINE void crc_step(VECTOR key[4], VECTOR byte, const struct tables *tables)
{
    const VECTOR nibble = OP(set1_epi8)(15);
    VECTOR index = XOR(key[0], byte);
    VECTOR low = AND(index, nibble);
    VECTOR high = AND(OP(srli_epi16)(index, 4), nibble);
#define ENTRY(p) XOR(OP(shuffle_epi8)(tables->nibble[p][0], low), OP(shuffle_epi8)(tables->nibble[p][1], high))
    key[0] = XOR(key[1], ENTRY(0));
    key[1] = XOR(key[2], ENTRY(1));
    key[2] = XOR(key[3], ENTRY(2));
    key[3] = ENTRY(3);
#undef ENTRY
}

/* k * (k ^ 1) >> 8, where k is the low half of key2 with bit 1 set */
INLINE VECTOR key_stream(VECTOR low, VECTOR high)
{
    const VECTOR one = OP(set1_epi16)(1);
    VECTOR k, product[2];
    low = BITS(or)(low, OP(set1_epi8)(2));
    k = OP(unpacklo_epi8)(low, high);
    product[0] = OP(srli_epi16)(OP(mullo_epi16)(k, XOR(k, one)), 8);
    k = OP(unpackhi_epi8)(low, high);
    product[1] = OP(srli_epi16)(OP(mullo_epi16)(k, XOR(k, one)), 8);
    return OP(packus_epi16)(product[0], product[1]);
}

/* key1 = (key1 + byte) * 0x08088405 + 1 on the two 16-bit halves of key1. There is no unsigned comparison, but
   a saturating subtraction leaves 0 exactly where the sum did not wrap; such a mask is -1. */
INLINE void multiply_step(VECTOR *low, VECTOR *high, VECTOR byte)
{
    const VECTOR zero = BITS(setzero)(), one = OP(set1_epi16)(1);
    const VECTOR factor_low = OP(set1_epi16)((short)0x8405), factor_high = OP(set1_epi16)(0x0808);
    VECTOR sum = OP(add_epi16)(*low, byte);
    VECTOR no_carry = OP(cmpeq_epi16)(OP(subs_epu16)(byte, sum), zero);
    VECTOR upper = OP(add_epi16)(OP(add_epi16)(*high, one), no_carry);
    VECTOR product = OP(add_epi16)(OP(mullo_epi16)(sum, factor_low), one);
    upper = OP(add_epi16)(OP(mullo_epi16)(upper, factor_low), OP(mulhi_epu16)(sum, factor_low));
    upper = OP(add_epi16)(upper, OP(mullo_epi16)(sum, factor_high));
    *low = product;
    *high = OP(sub_epi16)(upper, OP(cmpeq_epi16)(product, zero));
}

/* 16 rows of 16 bytes become 16 columns, in each 128 bits apart; done twice, it undoes itself. */
INLINE void transpose(VECTOR rows[16])
{
    VECTOR other[16];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            other[2 * i] = OP(unpacklo_epi8)(rows[i], rows[i + 8]);
            other[2 * i + 1] = OP(unpackhi_epi8)(rows[i], rows[i + 8]);
        }
        for (int i = 0; i < 8; i++) {
            rows[2 * i] = OP(unpacklo_epi8)(other[i], other[i + 8]);
            rows[2 * i + 1] = OP(unpackhi_epi8)(other[i], other[i + 8]);
        }
    }
}

INLINE void load_planes(const uint32_t keys[LANES], VECTOR planes[4])
{
    uint8_t bytes[LANES];
    for (int plane = 0; plane < 4; plane++) {
        for (int i = 0; i < LANES; i++)
            bytes[i] = (uint8_t)(keys[i] >> 8 * plane);
        planes[plane] = BITS(loadu)((const VECTOR *)bytes);
    }
}

INLINE void store_planes(const VECTOR planes[4], uint32_t keys[LANES])
{
    uint8_t bytes[4][LANES];
    for (int plane = 0; plane < 4; plane++)
        BITS(storeu)((VECTOR *)bytes[plane], planes[plane]);
    for (int i = 0; i < LANES; i++)
        keys[i] = bytes[0][i] | (uint32_t)bytes[1][i] << 8 | (uint32_t)bytes[2][i] << 16 | (uint32_t)bytes[3][i] << 24;
}

FOR_TARGET void RUN(struct zipcrypto_lanes *lanes, size_t blocks)
{
    const VECTOR zero = BITS(setzero)();
    struct tables tables;
    VECTOR key0[4], key1[4], key2[4], low[2], high[2];

    fill_tables(&tables);
    load_planes(lanes->key0, key0);
    load_planes(lanes->key1, key1);
    load_planes(lanes->key2, key2);
    low[0] = OP(unpacklo_epi8)(key1[0], key1[1]);
    low[1] = OP(unpackhi_epi8)(key1[0], key1[1]);
    high[0] = OP(unpacklo_epi8)(key1[2], key1[3]);
    high[1] = OP(unpackhi_epi8)(key1[2], key1[3]);

    for (; blocks > 0; blocks--) {
        VECTOR text[16];
        for (int i = 0; i < 16; i++)
            text[i] = LOAD_ROW(lanes->at, i);
        transpose(text);
        for (int i = 0; i < 16; i++) {
            text[i] = XOR(text[i], key_stream(key2[0], key2[1]));
            crc_step(key0, text[i], &tables);
            multiply_step(&low[0], &high[0], OP(unpacklo_epi8)(key0[0], zero));
            multiply_step(&low[1], &high[1], OP(unpackhi_epi8)(key0[0], zero));
            crc_step(key2, OP(packus_epi16)(OP(srli_epi16)(high[0], 8), OP(srli_epi16)(high[1], 8)), &tables);
        }
        transpose(text);
        for (int i = 0; i < 16; i++)
            STORE_ROW(lanes->at, i, text[i]);
        for (int i = 0; i < LANES; i++)
            lanes->at[i] += lanes->stride[i];
    }

    {
        const VECTOR byte = OP(set1_epi16)(0xff);
        key1[0] = OP(packus_epi16)(AND(low[0], byte), AND(low[1], byte));
        key1[1] = OP(packus_epi16)(OP(srli_epi16)(low[0], 8), OP(srli_epi16)(low[1], 8));
        key1[2] = OP(packus_epi16)(AND(high[0], byte), AND(high[1], byte));
        key1[3] = OP(packus_epi16)(OP(srli_epi16)(high[0], 8), OP(srli_epi16)(high[1], 8));
    }
    store_planes(key0, lanes->key0);
    store_planes(key1, lanes->key1);
    store_planes(key2, lanes->key2);
}
