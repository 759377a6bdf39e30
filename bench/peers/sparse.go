package main

import (
	"bytes"
	"io"
	"os"
)

// copySparse copies a file to RAM and leaves holes in place of zeros. It looks for zeros itself,
// because the file system of the image does not report holes.
func copySparse(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	const block = 64 << 10
	buf, zero := make([]byte, block), make([]byte, block)
	for at := int64(0); ; {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := out.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return out.Truncate(at)
		default:
			return err
		}
	}
}
