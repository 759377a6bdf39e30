package record

import "time"

// Key is the record of a key that encrypts snapshots. The record has the key only in wrapped form:
// encrypted with a secret that is not in the state directory.
type Key struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Wrap    string    `json:"wrap"`    // how the key was wrapped: WrapFile or WrapCommand
	Wrapped string    `json:"wrapped"` // the wrapped key, in base64
	Check   string    `json:"check"`   // detects a wrong key after unwrapping, in base64
}

// Values of Key.Wrap.
const (
	WrapFile    = "file"    // with the secret in the file of --key-file
	WrapCommand = "command" // by the program of --kms-command
)

// keyFile is the content of the record of a key.
type keyFile struct {
	Version int `json:"version"`
	Key
}

// EncodeKey returns the bytes of the record of a key. It refuses a record that ParseKey would
// refuse.
func EncodeKey(k *Key) ([]byte, error) {
	if f := k.check(); f != nil {
		return nil, f
	}
	return encode(keyFile{Version, *k})
}

// ParseKey decodes and checks the record of a key. Errors are *Error with the given path. The file
// at this path is not opened.
func ParseKey(path string, p []byte) (*Key, error) {
	var now keyFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Key, nil
}

func (k *Key) check() *fault {
	for _, f := range []struct{ name, value string }{{"id", k.ID}, {"wrap", k.Wrap}, {"wrapped", k.Wrapped},
		{"check", k.Check}} {
		if f.value == "" {
			return wrong(f.name, "empty: %s", otherForkd)
		}
	}
	return nil
}

// Encryption is the record of an encrypted snapshot, in its directory.
type Encryption struct {
	SnapshotID string   `json:"snapshot_id"`
	Keys       []string `json:"keys"` // IDs of the keys of its encrypted files
}

// encryptionFile is the content of the record of an encrypted snapshot.
type encryptionFile struct {
	Version int `json:"version"`
	Encryption
}

// EncodeEncryption returns the bytes of the record of an encrypted snapshot. It refuses a record
// that ParseEncryption would refuse.
func EncodeEncryption(e *Encryption) ([]byte, error) {
	if f := e.check(); f != nil {
		return nil, f
	}
	return encode(encryptionFile{Version, *e})
}

// ParseEncryption decodes and checks the record of an encrypted snapshot. Errors are *Error with the
// given path. The file at this path is not opened.
func ParseEncryption(path string, p []byte) (*Encryption, error) {
	var now encryptionFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Encryption, nil
}

func (e *Encryption) check() *fault {
	switch {
	case e.SnapshotID == "":
		return wrong("snapshot_id", "empty: %s", otherForkd)
	case len(e.Keys) == 0:
		return wrong("keys", "empty: want the keys of the files; %s", otherForkd)
	}
	return nil
}
