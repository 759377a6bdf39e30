package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// suspendedFile is the name of the file with the latest suspended state of a sandbox.
const suspendedFile = "suspended.json"

// original is the suspended sandbox whose files are copied.
type original struct {
	dir      string
	sandbox  *record.Sandbox
	manifest *snapshot.Manifest
	files    []os.DirEntry // files of the snapshot
}

// multiply makes n copies of a suspended sandbox and returns their IDs. Their layers are links to
// the layers of the original.
func multiply(dir, id string, n int) ([]string, error) {
	o, err := readOriginal(dir, id)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, n)
	for range n {
		copied, err := o.copy()
		if err != nil {
			return nil, err
		}
		ids = append(ids, copied)
	}
	return ids, nil
}

func readOriginal(dir, id string) (*original, error) {
	o := &original{dir: dir}
	path := filepath.Join(dataOf(dir, id), suspendedFile)
	p, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if o.sandbox, err = record.ParseSuspended(path, p); err != nil {
		return nil, err
	}
	from := snapshotOf(dir, o.sandbox.SnapshotTag)
	if p, err = os.ReadFile(filepath.Join(from, snapshot.ManifestFile)); err != nil {
		return nil, err
	}
	if o.manifest, err = snapshot.ParseManifest(p); err != nil {
		return nil, err
	}
	o.files, err = os.ReadDir(from)
	return o, err
}

// copy makes one more suspended sandbox.
func (o *original) copy() (id string, err error) {
	s := *o.sandbox
	id = "sb-" + snapshot.NewID()
	s.SnapshotTag = strings.Replace(s.SnapshotTag, s.ID, id, 1)
	s.ID, s.SnapshotID = id, snapshot.NewID()
	if s.SnapshotTag == o.sandbox.SnapshotTag {
		return "", fmt.Errorf("the tag %s of a suspended state does not contain the sandbox's id", s.SnapshotTag)
	}
	to := snapshotOf(o.dir, s.SnapshotTag)
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	m := o.renamed(s.SnapshotTag, s.SnapshotID)
	p, err := m.Encode()
	if err == nil {
		err = os.WriteFile(filepath.Join(to, snapshot.ManifestFile), p, 0o600)
	}
	if err != nil {
		return "", err
	}
	for _, f := range o.files {
		if f.Name() == snapshot.ManifestFile {
			continue
		}
		from := filepath.Join(snapshotOf(o.dir, o.sandbox.SnapshotTag), f.Name())
		provide := copyFile
		if strings.Contains(f.Name(), ".layer") {
			provide = os.Link // only layers may have several names in the store
		}
		if err := provide(from, filepath.Join(to, f.Name())); err != nil {
			return "", err
		}
	}
	if p, err = record.EncodeSuspended(&s); err != nil {
		return "", err
	}
	if err := os.Mkdir(dataOf(o.dir, id), 0o700); err != nil {
		return "", err
	}
	return id, os.WriteFile(filepath.Join(dataOf(o.dir, id), suspendedFile), p, 0o600)
}

// copyFile copies a small file.
func copyFile(from, to string) error {
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, p, 0o600)
}

// renamed returns the manifest of the original with another tag and ID. The copy owns its layers, as
// every snapshot does.
func (o *original) renamed(tag, id string) *snapshot.Manifest {
	m, old := *o.manifest, o.manifest.ID
	own := func(files []snapshot.File) []snapshot.File {
		out := append([]snapshot.File(nil), files...)
		for i := range out {
			if out[i].Owner == old {
				out[i].Owner = id
			}
		}
		return out
	}
	m.Tag, m.ID, m.State.Owner, m.Map.Owner = tag, id, id, id
	m.Memory = own(m.Memory)
	disk := *m.Disk
	disk.Layers = own(disk.Layers)
	m.Disk = &disk
	return &m
}
