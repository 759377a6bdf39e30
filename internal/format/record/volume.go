package record

import "time"

// Volume is the record of a volume.
type Volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Owner     string            `json:"owner"`
	Created   time.Time         `json:"created"`
	SizeBytes uint64            `json:"size_bytes"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// volumeFile is the content of the record of a volume.
type volumeFile struct {
	Version int `json:"version"`
	Volume
}

// EncodeVolume returns the bytes of the record of a volume. It refuses a record that ParseVolume
// would refuse.
func EncodeVolume(v *Volume) ([]byte, error) {
	if f := v.check(); f != nil {
		return nil, f
	}
	return encode(volumeFile{Version, *v})
}

// ParseVolume decodes and checks the record of a volume. Errors are *Error with the given path. The
// file at this path is not opened.
func ParseVolume(path string, p []byte) (*Volume, error) {
	var now volumeFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Volume, nil
}

func (v *Volume) check() *fault {
	switch {
	case v.ID == "":
		return wrong("id", "empty: %s", otherForkd)
	case v.Name == "":
		return wrong("name", "empty: %s", otherForkd)
	case v.Owner == "":
		return wrong("owner", "empty: want the client that counts for the volume; %s", otherForkd)
	case v.SizeBytes == 0:
		return wrong("size_bytes", "0: want the size of the volume; %s", otherForkd)
	}
	return nil
}
