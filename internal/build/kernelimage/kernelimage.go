// Package kernelimage extracts the uncompressed ELF kernel (vmlinux) from an x86 bzImage. A virtual
// machine that boots the ELF kernel does not spend its first second on decompression.
//
// The package reads the payload that the setup header describes. It supports the compressions that
// distributions use: gzip, xz, zstd and lz4. It does not check whether the kernel can be loaded.
package kernelimage

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/therootcompany/xz"
)

// Offsets into the setup header, from Linux Documentation/arch/x86/boot.rst, "The Real-Mode Kernel
// Header".
const (
	offSetupSects    = 0x1f1 // u8: size of the setup code in sectors, 0 means 4
	offHeaderMagic   = 0x202 // "HdrS"
	offVersion       = 0x206 // u16: boot protocol version
	offPayloadOffset = 0x248 // u32: from the start of the protected-mode code
	offPayloadLength = 0x24c // u32
	headerEnd        = 0x250

	sectorSize        = 512
	defaultSetupSects = 4
	minVersion        = 0x0208 // the first protocol with payload_offset and payload_length
)

// MaxVMLinuxBytes bounds the uncompressed kernel, because a hostile payload must not fill the
// host's memory. A distribution's kernel without debug information has less than 100 MiB.
const MaxVMLinuxBytes = 512 << 20

// xzDictMax is the largest accepted xz dictionary, in bytes: twice what `xz -9e` uses for kernels.
const xzDictMax = 128 << 20

// ErrNotBzImage means that the input has no x86 setup header.
var ErrNotBzImage = errors.New("not an x86 bzImage")

// IsELF reports whether image is an ELF file already, so that nothing needs to be extracted.
func IsELF(image []byte) bool { return bytes.HasPrefix(image, []byte("\x7fELF")) }

// ExtractVMLinux returns the ELF kernel inside bzImage. It returns an ELF file unchanged. For any
// other input, the error wraps ErrNotBzImage.
func ExtractVMLinux(bzImage []byte) ([]byte, error) {
	if IsELF(bzImage) {
		return bzImage, nil
	}
	payload, err := findPayload(bzImage)
	if err != nil {
		return nil, fmt.Errorf("extract vmlinux: %w", err)
	}
	vmlinux, err := decompress(payload)
	if err != nil {
		return nil, fmt.Errorf("extract vmlinux: %w", err)
	}
	if !IsELF(vmlinux) {
		return nil, errors.New("extract vmlinux: the payload is not an ELF file")
	}
	return vmlinux, nil
}

func findPayload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[offHeaderMagic:offHeaderMagic+4]) != "HdrS" {
		return nil, ErrNotBzImage
	}
	version := binary.LittleEndian.Uint16(image[offVersion:])
	if version < minVersion {
		return nil, fmt.Errorf("boot protocol %#x has no payload fields; need %#x or later", version, minVersion)
	}
	sects := uint64(image[offSetupSects])
	if sects == 0 {
		sects = defaultSetupSects
	}
	start := (sects+1)*sectorSize + uint64(binary.LittleEndian.Uint32(image[offPayloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(image[offPayloadLength:]))
	if end > uint64(len(image)) {
		return nil, fmt.Errorf("payload ends at %d, the file at %d: the file is truncated", end, len(image))
	}
	return image[start:end], nil
}

// decompress decompresses the payload according to its magic number. It ignores data after the
// compressed stream, because for some formats the kernel's build appends the uncompressed size
// (u32).
func decompress(payload []byte) ([]byte, error) {
	switch {
	case IsELF(payload): // CONFIG_KERNEL_UNCOMPRESSED
		return payload, nil
	case bytes.HasPrefix(payload, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(bytes.NewReader(payload))
		if err != nil {
			return nil, fmt.Errorf("gzip payload: %w", err)
		}
		r.Multistream(false)
		return readBounded("gzip", r)
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		// The kernel was filtered with BCJ x86 before it was compressed. This xz package supports
		// that filter.
		r, err := xz.NewReader(bytes.NewReader(trimSize(payload)), xzDictMax)
		if err != nil {
			return nil, fmt.Errorf("xz payload: %w", err)
		}
		r.Multistream(false)
		return readBounded("xz", r)
	case bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstdFrame(payload)
	// A legacy lz4 frame, which the kernel's build writes.
	case bytes.HasPrefix(payload, []byte{0x02, 0x21, 0x4c, 0x18}):
		return readBounded("lz4", lz4.NewReader(bytes.NewReader(trimSize(payload))))
	}
	return nil, fmt.Errorf("payload has an unknown compression (magic % x); gzip, xz, zstd and lz4 are known",
		head(payload))
}

// zstdFrame decompresses exactly one frame. Without this limit, the decoder would treat the
// appended size as a second, damaged frame.
func zstdFrame(payload []byte) ([]byte, error) {
	r, err := zstd.NewReader(bytes.NewReader(trimSize(payload)),
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxVMLinuxBytes), zstd.WithDecoderMaxWindow(xzDictMax))
	if err != nil {
		return nil, fmt.Errorf("zstd payload: %w", err)
	}
	defer r.Close()
	return readBounded("zstd", r)
}

// trimSize removes the size (u32) that the kernel's build has appended.
func trimSize(payload []byte) []byte {
	if len(payload) < 4 {
		return payload
	}
	return payload[:len(payload)-4]
}

func head(b []byte) []byte { return b[:min(len(b), 6)] }

func readBounded(format string, r io.Reader) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(r, MaxVMLinuxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s payload: %w", format, err)
	}
	if len(out) > MaxVMLinuxBytes {
		return nil, fmt.Errorf("%s payload: larger than %d bytes", format, MaxVMLinuxBytes)
	}
	return out, nil
}
