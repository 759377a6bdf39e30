package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	tarBlock = 512       // unit of a tar archive, in bytes
	tarPlain = 1<<33 - 1 // largest size in a header block, in bytes
	tarTexts = 1 << 20   // largest extended header that tar.Reader reads, in bytes
)

// tarForm checks the form of an archive that is written to it: the header blocks, the extended
// headers, and the bytes after the end. Programs disagree about unusual forms, such as two extended
// headers before an entry. A guest could use such a form so that the program that unpacks the
// archive sees other names than readExport sees. So tarForm refuses every form that forkd-diff does
// not write.
type tarForm struct {
	block   []byte // part of a header block
	content int64  // bytes of content and padding before the next header block
	text    []byte // part of an extended header
	missing int    // bytes of the extended header and its padding that are still missing in text
	size    int    // bytes of the extended header

	records map[string]string // extended header of the next entry; nil: none
	ended   bool
}

// Write implements io.Writer.
func (f *tarForm) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 0
		switch {
		case f.ended:
			if n = len(rest); len(bytes.Trim(rest, "\x00")) > 0 {
				return 0, errors.New("the archive has more than zeros after its end")
			}
		case f.content > 0:
			n = int(min(f.content, int64(len(rest))))
			f.content -= int64(n)
		case f.missing > 0:
			n = min(f.missing, len(rest))
			f.text = append(f.text, rest[:n]...)
			if f.missing -= n; f.missing == 0 {
				if err := f.extended(f.text); err != nil {
					return 0, err
				}
			}
		default:
			n = min(tarBlock-len(f.block), len(rest))
			if f.block = append(f.block, rest[:n]...); len(f.block) == tarBlock {
				if err := f.header(f.block); err != nil {
					return 0, err
				}
				f.block = f.block[:0]
			}
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// header checks a header block. The reader of the archive checks the block's checksum.
func (f *tarForm) header(b []byte) error {
	const kindAt, magicAt, magic = 156, 257, "ustar\x0000"
	if len(bytes.Trim(b, "\x00")) == 0 {
		if f.ended = true; f.records != nil {
			return errors.New("the archive has an extended header without an entry")
		}
		return nil
	}
	size, err := strconv.ParseUint(string(b[124:135]), 8, 64) // programs disagree about other forms of a number
	kind := b[kindAt]
	switch {
	case err != nil || b[135] != 0 || string(b[magicAt:magicAt+len(magic)]) != magic:
		return errors.New("the archive has a header of another format than POSIX")
	case strings.IndexByte("0123456x", kind) < 0:
		return fmt.Errorf("the archive has an entry of the type %q", kind)
	case kind == 'x' && f.records != nil:
		return errors.New("the archive has two extended headers before an entry")
	case kind == 'x' && size > tarTexts:
		return fmt.Errorf("the archive has an extended header of more than %d bytes", tarTexts)
	case kind != '0' && kind != 'x' && size > 0:
		return fmt.Errorf("the archive has content for an entry of the type %q", kind)
	case kind != '0' && (f.records["size"] != "" || f.records["GNU.sparse.name"] != ""):
		return fmt.Errorf("the archive has a size or holes for an entry of the type %q", kind)
	}
	blocks := (int64(size) + tarBlock - 1) / tarBlock
	if kind == 'x' {
		f.text, f.size, f.missing, f.records = f.text[:0], int(size), int(blocks*tarBlock), map[string]string{}
		return nil
	}
	if text := f.records["size"]; text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= tarPlain || n > 1<<62 || strconv.FormatInt(n, 10) != text {
			return fmt.Errorf("the archive has an extended header with the size %.30q", text)
		}
		blocks = (n + tarBlock - 1) / tarBlock
	}
	f.content, f.records = blocks*tarBlock, nil
	return nil
}

// extended reads an extended header with its padding.
func (f *tarForm) extended(text []byte) error {
	errWrong := errors.New("the archive has an extended header that is not well formed")
	if len(bytes.Trim(text[f.size:], "\x00")) > 0 {
		return errWrong // some versions of Python's tarfile read records in the padding
	}
	for text = text[:f.size]; len(text) > 0; {
		length, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseUint(string(length), 10, 31) // a sign is an error
		if err != nil || n <= uint64(len(length)) || n > uint64(len(text)) || text[n-1] != '\n' {
			return errWrong
		}
		key, value, found := strings.Cut(string(text[len(length)+1:n-1]), "=")
		text = text[n:]
		isAttr := strings.HasPrefix(key, "SCHILY.xattr.")
		_, isSecond := f.records[key]
		switch key {
		case "path", "linkpath", "size", "uid", "gid", "mtime", "GNU.sparse.major", "GNU.sparse.minor",
			"GNU.sparse.name", "GNU.sparse.realsize":
		default:
			if !isAttr {
				return fmt.Errorf("the archive has an extended header with the key %.100q", key)
			}
		}
		if !found || isSecond || value == "" && !isAttr {
			return errWrong
		}
		if f.records[key] = value; isAttr {
			f.records[key] = "" // only the key is needed
		}
	}
	return f.sparse()
}

// sparse checks that the records of a file with holes are complete. If the version of the sparse
// format is missing, programs disagree about the name of the file.
func (f *tarForm) sparse() error {
	r := f.records
	major, minor, name, size := r["GNU.sparse.major"], r["GNU.sparse.minor"], r["GNU.sparse.name"],
		r["GNU.sparse.realsize"]
	if major+minor+name+size == "" {
		return nil
	}
	n, err := strconv.ParseUint(size, 10, 63)
	if major != "1" || minor != "0" || name == "" || r["path"] != "" || err != nil || strconv.FormatUint(n, 10) != size {
		return errors.New("the archive has a file with holes whose extended header is not complete")
	}
	return nil
}
