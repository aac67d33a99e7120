"""WinZip's AES encryption of a zip member, versions AE-1 and AE-2.

Source: https://www.winzip.com/en/support/aes-encryption/ – PBKDF2-HMAC-SHA1 with 1000 rounds, AES in
counter mode with a little-endian counter that starts at 1, and the first ten bytes of an HMAC-SHA1 over the
encrypted bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

#: Compression method by which a zip marks such a member.
METHOD = 99

MAC_SIZE = 10
VERIFIER_SIZE = 2

_EXTRA_ID = 0x9901
_ROUNDS = 1000


class AesField(NamedTuple):
    """The extra field of a member.

    Attributes:
        version: 1 keeps the member's CRC, 2 leaves it out.
        strength: 1, 2, 3 for keys of 128, 192, 256 bits.
        method: how the member was compressed before it was encrypted.
    """

    version: int
    strength: int
    method: int

    @property
    def key_size(self) -> int:
        """Bytes of the AES key."""
        return 8 + 8 * self.strength

    @property
    def salt_size(self) -> int:
        """Bytes of salt before the encrypted data."""
        return self.key_size // 2


def find_field(extra: bytes) -> AesField | None:
    """The field among a member's extra fields; None where there is none or it is malformed."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == _EXTRA_ID and size >= 7 and len(extra) >= 4 + size:
            version, _, strength, method = struct.unpack_from("<H2sBH", extra, 4)
            if strength in (1, 2, 3):
                return AesField(version, strength, method)
        extra = extra[4 + size :]
    return None


class AesDecryptor:
    """Decrypts one member, which begins with ``salt``, and authenticates it.

    ``verifier`` is what follows the salt if the password is right.
    """

    def __init__(self, password: bytes, field: AesField, salt: bytes) -> None:
        from Cryptodome.Cipher import AES
        from Cryptodome.Util import Counter

        size = field.key_size
        # This releases the interpreter's lock, so several threads derive keys at the same time.
        derived = hashlib.pbkdf2_hmac("sha1", password, salt, _ROUNDS, 2 * size + VERIFIER_SIZE)
        self.verifier = derived[2 * size :]
        self._mac = hmac.new(derived[size : 2 * size], digestmod=hashlib.sha1)
        counter = Counter.new(128, initial_value=1, little_endian=True)
        self._cipher = AES.new(derived[:size], AES.MODE_CTR, counter=counter)

    def decrypt(self, block: memoryview) -> None:
        """Decrypt the next bytes in place."""
        self._mac.update(block)
        self._cipher.decrypt(block, output=block)

    def is_authentic(self, mac: bytes) -> bool:
        """Whether all bytes that were decrypted are those that were encrypted."""
        return hmac.compare_digest(self._mac.digest()[:MAC_SIZE], mac)
