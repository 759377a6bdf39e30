package bareguest

import "encoding/binary"

// ELF returns an ELF-64 executable with image as its only segment. The segment is loaded at
// loadAddr, where execution begins (gABI 4.1, chapters 4 and 5). In the file, the segment begins at
// a page boundary.
func ELF(image []byte, loadAddr uint32) []byte {
	const headerSize, progSize, segment = 64, 56, 0x1000
	le := binary.LittleEndian
	f := make([]byte, segment)
	copy(f, "\x7fELF\x02\x01\x01") // 64-bit, little-endian, version 1
	le.PutUint16(f[16:], 2)        // an executable
	le.PutUint16(f[18:], 62)       // machine: x86-64
	le.PutUint32(f[20:], 1)
	le.PutUint64(f[24:], uint64(loadAddr))
	le.PutUint64(f[32:], headerSize) // offset of the program headers, which follow this header
	le.PutUint16(f[52:], headerSize)
	le.PutUint16(f[54:], progSize)
	le.PutUint16(f[56:], 1)
	p := f[headerSize:]
	le.PutUint32(p, 1)     // type: a segment to load
	le.PutUint32(p[4:], 7) // readable, writable, executable
	le.PutUint64(p[8:], segment)
	le.PutUint64(p[16:], uint64(loadAddr))
	le.PutUint64(p[24:], uint64(loadAddr))
	le.PutUint64(p[32:], uint64(len(image)))
	le.PutUint64(p[40:], uint64(len(image)))
	le.PutUint64(p[48:], segment)
	return append(f, image...)
}
