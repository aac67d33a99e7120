"""WinZip AES encryption of zip members, versions AE-1 and AE-2.

PBKDF2-HMAC-SHA1 with 1000 rounds, AES in counter mode with a little-endian counter that starts at 1, and the
first ten bytes of an HMAC-SHA1 over the encrypted bytes.
Source: https://www.winzip.com/en/support/aes-encryption/
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

#: Compression method that marks an AES-encrypted member.
METHOD = 99

MAC_SIZE = 10
VERIFIER_SIZE = 2

_EXTRA_ID = 0x9901
_ROUNDS = 1000


class AesField(NamedTuple):
    """AES extra field of a member.

    Attributes:
        version: 1 if the CRC of the member is recorded, 2 if not.
        strength: 1, 2, 3 for keys of 128, 192, 256 bits.
        method: Compression method of the member before encryption.
    """

    version: int
    strength: int
    method: int

    @property
    def key_size(self) -> int:
        """Size of the AES key in bytes."""
        return 8 + 8 * self.strength

    @property
    def salt_size(self) -> int:
        """Size of the salt before the encrypted data, in bytes."""
        return self.key_size // 2


def find_field(extra: bytes) -> AesField | None:
    """Return the AES field from a member's extra fields, or None if it is missing or malformed."""
    while len(extra) >= 4:
        field_id, size = struct.unpack_from("<HH", extra)
        if field_id == _EXTRA_ID and size >= 7 and len(extra) >= 4 + size:
            version, _, strength, method = struct.unpack_from("<H2sBH", extra, 4)
            if strength in (1, 2, 3):
                return AesField(version, strength, method)
        extra = extra[4 + size :]
    return None


class AesDecryptor:
    """Decryption and authentication of one member.

    Attributes:
        verifier: Bytes that follow the salt in the file if the password is correct.
    """

    def __init__(self, password: bytes, field: AesField, salt: bytes) -> None:
        from Cryptodome.Cipher import AES
        from Cryptodome.Util import Counter

        key_size = field.key_size
        # This releases the GIL, so several threads derive keys at the same time.
        derived = hashlib.pbkdf2_hmac("sha1", password, salt, _ROUNDS, 2 * key_size + VERIFIER_SIZE)
        self.verifier = derived[2 * key_size :]
        self._mac = hmac.new(derived[key_size : 2 * key_size], digestmod=hashlib.sha1)
        counter = Counter.new(128, initial_value=1, little_endian=True)
        self._cipher = AES.new(derived[:key_size], AES.MODE_CTR, counter=counter)

    def decrypt(self, block: memoryview) -> None:
        """Decrypt the next bytes in place."""
        self._mac.update(block)
        self._cipher.decrypt(block, output=block)

    def is_authentic(self, mac: bytes) -> bool:
        """Return whether the MAC of all decrypted bytes equals ``mac``."""
        return hmac.compare_digest(self._mac.digest()[:MAC_SIZE], mac)
