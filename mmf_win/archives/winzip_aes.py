"""WinZip's AES encryption of a zip member, versions AE-1 and AE-2.

Source: https://www.winzip.com/en/support/aes-encryption/ – PBKDF2-HMAC-SHA1 with 1000 rounds, AES in
counter mode with a little-endian counter that starts at 1, and the first ten bytes of an HMAC-SHA1 over the
encrypted bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

METHOD = 99
"""Compression method by which a zip marks such a member."""

MAC_SIZE = 10
VERIFIER_SIZE = 2

_EXTRA_ID = 0x9901
_ROUNDS = 1000


@dataclass(frozen=True)
class AesField:
    """The extra field of a member.

    Attributes:
        version: 1 keeps the member's CRC, 2 leaves it out.
        strength: 1, 2, 3 for keys of 128, 192, 256 bits.
        method: how the member was compressed before it was encrypted.
    """

    version: int
    strength: int
    method: int

    @classmethod
    def parse(cls, extra: bytes) -> AesField:
        """Find the field among a member's extra fields.

        Raises:
            ValueError: there is none, or it is malformed.
        """
        while len(extra) >= 4:
            kind, size = struct.unpack_from("<HH", extra)
            if kind == _EXTRA_ID and size >= 7 and len(extra) >= 4 + size:
                version, _, strength, method = struct.unpack_from("<H2sBH", extra, 4)
                if strength in (1, 2, 3):
                    return cls(version, strength, method)
            extra = extra[4 + size :]
        raise ValueError("its AES header is malformed")

    @property
    def key_size(self) -> int:
        """Bytes of the AES key."""
        return 8 + 8 * self.strength

    @property
    def salt_size(self) -> int:
        """Bytes of salt before the encrypted data."""
        return self.key_size // 2

    @property
    def overhead(self) -> int:
        """Bytes that the encryption adds to the member."""
        return self.salt_size + VERIFIER_SIZE + MAC_SIZE


@dataclass(frozen=True)
class AesKeys:
    """What the password and a member's salt make.

    Attributes:
        cipher: the key of the cipher.
        mac: the key of the authentication code.
        verifier: what the member begins with after its salt, if the password is right.
    """

    cipher: bytes
    mac: bytes
    verifier: bytes

    @classmethod
    def cut(cls, derived: bytes, size: int) -> AesKeys:
        """The parts of what was derived for keys of ``size`` bytes."""
        return cls(derived[:size], derived[size : 2 * size], derived[2 * size :][:VERIFIER_SIZE])


def derive_keys(password: bytes, fields: Sequence[AesField], salts: Sequence[bytes]) -> list[AesKeys]:
    """The keys of members with these extra fields and salts; the more at once, the less each takes."""
    # A shorter key is the beginning of a longer one.
    size = max(2 * field.key_size + VERIFIER_SIZE for field in fields)
    if native := _native():
        short = password if len(password) <= 64 else hashlib.sha1(password).digest()  # as HMAC has it
        derived = native.derive(short, list(salts), size, _ROUNDS, native.kernels()[0])
    else:
        derived = [hashlib.pbkdf2_hmac("sha1", password, salt, _ROUNDS, size) for salt in salts]
    return [AesKeys.cut(key, field.key_size) for field, key in zip(fields, derived, strict=True)]


class AesDecryptor:
    """Decrypts one member and authenticates it.

    Args:
        keys: of this member.
    """

    def __init__(self, keys: AesKeys) -> None:
        self._mac = hmac.new(keys.mac, digestmod=hashlib.sha1)
        self._cipher: _NativeCipher | _Cipher
        if (native := _native()) and native.has_aes():
            self._cipher = _NativeCipher(native, keys.cipher)
        else:
            self._cipher = _Cipher(keys.cipher)

    def decrypt(self, data: bytearray, size: int) -> None:
        """Decrypt the next ``size`` bytes in place, a multiple of 16 unless they are the last."""
        self._mac.update(memoryview(data)[:size])
        self._cipher.decrypt(data, size)

    def authentic(self, mac: bytes) -> bool:
        """Whether all bytes that were decrypted are those that were encrypted."""
        return hmac.compare_digest(self._mac.digest()[:MAC_SIZE], mac)


class _NativeCipher:
    """By the processor's own instructions."""

    def __init__(self, native: ModuleType, key: bytes) -> None:
        self._decrypt, self._key, self._counter = native.decrypt, key, 1

    def decrypt(self, data: bytearray, size: int) -> None:
        self._decrypt(data, 0, size, self._key, self._counter)
        self._counter += size // 16


class _Cipher:
    """By pycryptodomex, where the C extension or the processor's instructions are missing."""

    def __init__(self, key: bytes) -> None:
        from Cryptodome.Cipher import AES
        from Cryptodome.Util import Counter

        self._aes = AES.new(key, AES.MODE_CTR, counter=Counter.new(128, initial_value=1, little_endian=True))

    def decrypt(self, data: bytearray, size: int) -> None:
        view = memoryview(data)[:size]
        self._aes.decrypt(view, output=view)


def _native() -> ModuleType | None:
    """The C extension; None where it was not built."""
    try:
        from mmf_win.archives import _winzip_aes
    except ImportError:
        return None
    return _winzip_aes
