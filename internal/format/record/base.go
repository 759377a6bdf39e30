package record

// Base is the record of a base image: a digest, and the file whose content has that digest.
type Base struct {
	Digest string `json:"digest"`
	Path   string `json:"path"` // path of the image in the latest bake that used it
	File   File   `json:"file"` // the file whose digest was computed
}

// File identifies one version of a file. Its value is different for another file, and for the same
// file after a change.
type File struct {
	Dev      uint64 `json:"dev"`
	Ino      uint64 `json:"ino"`
	Bytes    uint64 `json:"bytes"`
	ModNanos int64  `json:"mtime_ns"`
}

// baseFile is the content of the record of a base image.
type baseFile struct {
	Version int `json:"version"`
	Base
}

// EncodeBase returns the bytes of the record of a base image. It refuses a record that ParseBase
// would refuse.
func EncodeBase(b *Base) ([]byte, error) {
	if f := b.check(); f != nil {
		return nil, f
	}
	return encode(baseFile{Version, *b})
}

// ParseBase decodes and checks the record of a base image. Version 0 had the same fields. Errors
// are *Error with the given path. The file at this path is not opened.
func ParseBase(path string, p []byte) (*Base, error) {
	var now baseFile
	var old Base
	if err := parse(path, p, &now, &old, func() { now.Base = old }); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Base, nil
}

func (b *Base) check() *fault {
	switch {
	case b.Digest == "":
		return wrong("digest", "empty: %s", otherForkd)
	case b.Path == "":
		return wrong("path", "empty: %s", otherForkd)
	}
	return nil
}
