package file

import (
	"encoding/base64"
	"encoding/binary"
)

// A polynomial is that of a CRC, its bits reversed: the highest bit is that of x^0. The CRCs of S3 all begin with ones and end inverted,
// which is what [polynomial.join] relies on.
type polynomial struct {
	bits uint64
	size int // of a CRC, in bytes
}

// crcs are the algorithms whose checksum of the whole follows from those of its parts, by S3's name.
var crcs = map[string]polynomial{
	"CRC32":     {bits: 0xedb88320, size: 4},
	"CRC32C":    {bits: 0x82f63b78, size: 4},
	"CRC64NVME": {bits: 0x9a6c9329ac4bc9b5, size: 8},
}

func (p polynomial) one() uint64 { return 1 << (8*p.size - 1) } // x^0

// times multiplies two polynomials, modulo p.
func (p polynomial) times(a, b uint64) (product uint64) {
	for bit := p.one(); a != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			a &^= bit
		}
		if b&1 != 0 {
			b = b>>1 ^ p.bits
		} else {
			b >>= 1
		}
	}
	return product
}

// join is the CRC of a and the n bytes behind it, whose own is b: to append n zeros to a is to multiply its CRC with x^8n.
func (p polynomial) join(a, b uint64, n int64) uint64 {
	shift, square := p.one(), p.one()>>8 // x^0 and x^8
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			shift = p.times(shift, square)
		}
		square = p.times(square, square)
	}
	return p.times(a, shift) ^ b
}

// crcOf reads a sum as S3 writes it, which is Base64 of a big-endian number.
func (p polynomial) crcOf(value string) (uint64, bool) {
	b, err := base64.StdEncoding.DecodeString(value)
	if err != nil || len(b) != p.size {
		return 0, false
	}
	return binary.BigEndian.Uint64(append(make([]byte, 8-p.size), b...)), true
}

func (p polynomial) value(crc uint64) string {
	b := binary.BigEndian.AppendUint64(nil, crc)
	return base64.StdEncoding.EncodeToString(b[8-p.size:])
}
