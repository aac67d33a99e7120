/* SHA-1 (RFC 3174) and the rounds of PBKDF2, written once for one lane, four, and eight.

   Whoever includes this defines
       WORDS                      a 32-bit word of each lane, as one value
       FUNCTION                   how functions on them are declared
       ADD XOR AND OR LEFT RIGHT  for two such values, or for a value and a number of bits
       ALL(word)                  the same word in every lane
       LOAD(at) STORE(at, words)  to and from an array of uint32_t */

#define ROTATE(words, bits) OR(LEFT(words, bits), RIGHT(words, 32 - (bits)))

/* The functions of section 5, the first and the third with an operation less. */
#define CHOICE(b, c, d) XOR(d, AND(b, XOR(c, d)))
#define PARITY(b, c, d) XOR(XOR(b, c), d)
#define MAJORITY(b, c, d) OR(AND(b, c), AND(d, OR(b, c)))

/* Word i of the schedule, made of the 16 before it. Everything is unrolled, so that i is a constant. */
#define MIXED(i) XOR(XOR(w[((i) + 13) % 16], w[((i) + 8) % 16]), XOR(w[((i) + 2) % 16], w[(i) % 16]))
#define WORD(i) ((i) < 16 ? w[(i) % 16] : (w[(i) % 16] = ROTATE(MIXED(i), 1)))

/* One step; instead of moving a, b, c, d, e on by one, the next step names them so. */
#define STEP(a, b, c, d, e, f, k, i)                                     \
    e = ADD(ADD(e, ROTATE(a, 5)), ADD(f(b, c, d), ADD(ALL(k), WORD(i)))); \
    b = ROTATE(b, 30)

#define FIVE_STEPS(i, f, k)             \
    STEP(a, b, c, d, e, f, k, (i));     \
    STEP(e, a, b, c, d, f, k, (i) + 1); \
    STEP(d, e, a, b, c, f, k, (i) + 2); \
    STEP(c, d, e, a, b, f, k, (i) + 3); \
    STEP(b, c, d, e, a, f, k, (i) + 4)

#define TWENTY_STEPS(i, f, k)  \
    FIVE_STEPS(i, f, k);       \
    FIVE_STEPS((i) + 5, f, k);  \
    FIVE_STEPS((i) + 10, f, k); \
    FIVE_STEPS((i) + 15, f, k)

/* Takes the block w into the state, and spoils w. */
FUNCTION void sha1_block(WORDS state[5], WORDS w[16])
{
    WORDS a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    TWENTY_STEPS(0, CHOICE, 0x5a827999);
    TWENTY_STEPS(20, PARITY, 0x6ed9eba1);
    TWENTY_STEPS(40, MAJORITY, 0x8f1bbcdc);
    TWENTY_STEPS(60, PARITY, 0xca62c1d6);
    state[0] = ADD(state[0], a);
    state[1] = ADD(state[1], b);
    state[2] = ADD(state[2], c);
    state[3] = ADD(state[3], d);
    state[4] = ADD(state[4], e);
}

/* hash = SHA-1 of the 20 bytes of `hash`, after a block that has led to the state `before` */
FUNCTION void sha1_hash_again(const uint32_t before[5], WORDS hash[5])
{
    WORDS w[16];
    for (int i = 0; i < 5; i++) {
        w[i] = hash[i];
        hash[i] = ALL(before[i]);
    }
    w[5] = ALL(0x80000000); /* the end of the message, and its length in bits */
    for (int i = 6; i < 15; i++)
        w[i] = ALL(0);
    w[15] = ALL((64 + 20) * 8);
    sha1_block(hash, w);
}

FUNCTION void pbkdf2_rounds(const struct pbkdf2_password *password, unsigned rounds, struct pbkdf2_lanes *lanes)
{
    WORDS u[5], key[5];
    for (int i = 0; i < 5; i++) {
        u[i] = LOAD(lanes->u[i]);
        key[i] = LOAD(lanes->key[i]);
    }
    for (; rounds > 0; rounds--) {
        sha1_hash_again(password->inner, u);
        sha1_hash_again(password->outer, u);
        for (int i = 0; i < 5; i++)
            key[i] = XOR(key[i], u[i]);
    }
    for (int i = 0; i < 5; i++) {
        STORE(lanes->u[i], u[i]);
        STORE(lanes->key[i], key[i]);
    }
}
