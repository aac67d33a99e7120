#include "kernels.h"

uint32_t zipcrypto_crc[256];

void zipcrypto_init(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        zipcrypto_crc[byte] = value;
    }
}

/* Decrypts the rest of a stream byte by byte. */
static void finish(struct zipcrypto_stream *stream)
{
    struct zipcrypto_keys keys = stream->keys;
    for (; stream->left > 0; stream->left--, stream->at++)
        *stream->at = zipcrypto_step(&keys, *stream->at);
    stream->keys = keys;
}

void zipcrypto_decrypt(const struct zipcrypto_kernel *kernel, struct zipcrypto_stream *streams, size_t count)
{
    struct zipcrypto_lanes lanes;
    struct zipcrypto_stream *active[ZIPCRYPTO_MAX_LANES] = {NULL};
    uint8_t idle_block[ZIPCRYPTO_BLOCK] = {0};
    size_t next = 0;

    for (;;) {
        unsigned busy = 0, last = 0;
        size_t blocks = SIZE_MAX;
        for (unsigned i = 0; i < kernel->lanes; i++) {
            struct zipcrypto_stream *stream = active[i];
            if (stream != NULL && stream->left < ZIPCRYPTO_BLOCK) {
                stream->keys.key0 = lanes.key0[i];
                stream->keys.key1 = lanes.key1[i];
                stream->keys.key2 = lanes.key2[i];
                finish(stream);
                stream = NULL;
            }
            if (stream == NULL) {
                while (next < count && streams[next].left < ZIPCRYPTO_BLOCK)
                    finish(&streams[next++]);
                if (next < count)
                    stream = &streams[next++];
                lanes.at[i] = stream != NULL ? stream->at : idle_block;
                lanes.stride[i] = stream != NULL ? ZIPCRYPTO_BLOCK : 0;
                lanes.key0[i] = stream != NULL ? stream->keys.key0 : 0;
                lanes.key1[i] = stream != NULL ? stream->keys.key1 : 0;
                lanes.key2[i] = stream != NULL ? stream->keys.key2 : 0;
                active[i] = stream;
            }
            if (stream != NULL) {
                size_t whole = stream->left / ZIPCRYPTO_BLOCK;
                blocks = whole < blocks ? whole : blocks;
                busy++;
                last = i;
            }
        }
        if (busy == 0)
            return;
        if (busy == 1 && kernel->lanes > 1) { /* a single stream is faster without the other lanes */
            active[last]->keys.key0 = lanes.key0[last];
            active[last]->keys.key1 = lanes.key1[last];
            active[last]->keys.key2 = lanes.key2[last];
            finish(active[last]);
            return;
        }
        kernel->run(&lanes, blocks);
        for (unsigned i = 0; i < kernel->lanes; i++)
            if (active[i] != NULL) {
                active[i]->at += blocks * ZIPCRYPTO_BLOCK;
                active[i]->left -= blocks * ZIPCRYPTO_BLOCK;
            }
    }
}

/* --- portable kernels --- */

static void run_scalar(struct zipcrypto_lanes *lanes, size_t blocks)
{
    struct zipcrypto_keys keys = {lanes->key0[0], lanes->key1[0], lanes->key2[0]};
    uint8_t *at = lanes->at[0];
    for (size_t left = blocks * lanes->stride[0]; left > 0; left--, at++)
        *at = zipcrypto_step(&keys, *at);
    lanes->at[0] = at;
    lanes->key0[0] = keys.key0;
    lanes->key1[0] = keys.key1;
    lanes->key2[0] = keys.key2;
}

/* The steps of eight streams are independent, so the processor overlaps them. */
#define INTERLEAVED 8

static void run_interleaved(struct zipcrypto_lanes *lanes, size_t blocks)
{
    struct zipcrypto_keys keys[INTERLEAVED];
    for (int i = 0; i < INTERLEAVED; i++) {
        keys[i].key0 = lanes->key0[i];
        keys[i].key1 = lanes->key1[i];
        keys[i].key2 = lanes->key2[i];
    }
    for (; blocks > 0; blocks--) {
        uint8_t *at[INTERLEAVED];
        for (int i = 0; i < INTERLEAVED; i++) {
            at[i] = lanes->at[i];
            lanes->at[i] += lanes->stride[i];
        }
        for (int byte = 0; byte < ZIPCRYPTO_BLOCK; byte++)
            for (int i = 0; i < INTERLEAVED; i++)
                at[i][byte] = zipcrypto_step(&keys[i], at[i][byte]);
    }
    for (int i = 0; i < INTERLEAVED; i++) {
        lanes->key0[i] = keys[i].key0;
        lanes->key1[i] = keys[i].key1;
        lanes->key2[i] = keys[i].key2;
    }
}

const struct zipcrypto_kernel zipcrypto_kernels[] = {
#ifdef NATIVE_X86
#ifdef NATIVE_AVX2
    {"avx2", 32, cpu_has_avx2, zipcrypto_run_avx2},
#endif
    {"ssse3", 16, cpu_has_ssse3, zipcrypto_run_ssse3},
#endif
    {"interleaved", INTERLEAVED, cpu_always, run_interleaved},
    {"scalar", 1, cpu_always, run_scalar},
    {NULL, 0, NULL, NULL},
};
