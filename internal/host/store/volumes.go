package store

import (
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hardlink"
)

// LinkVolumes gives the snapshot its own links to the files of volumes, so that it keeps their content
// when the volumes change or are removed. The last parameter has the open files of each volume.
func (g *Staging) LinkVolumes(volumes []snapshot.Volume, files [][]*os.File) error {
	for i, v := range volumes {
		for n, f := range v.Files {
			if err := hardlink.File(files[i][n], g.Path(volumeFile(g.id, f))); err != nil {
				return err
			}
		}
	}
	return nil
}

// volumeFile returns the name of a file of a volume, in the directory of the snapshot with the
// given id. If several volumes share the file, they share the link.
func volumeFile(id string, f snapshot.File) string {
	return snapshot.LayerFile(snapshot.VolumeFile, id, f.Owner)
}

// Volumes returns the files of each volume of a leased snapshot: the base image and the layers.
func (l *Lease) Volumes() [][]*os.File { return l.volumes }

// openVolumes opens the files of the volumes of a snapshot.
func (s *Store) openVolumes(h *hotFiles, dir string) error {
	h.volumes = make([][]*os.File, len(h.manifest.Volumes))
	for i, v := range h.manifest.Volumes {
		for _, file := range v.Files {
			name := volumeFile(h.manifest.ID, file)
			f, err := s.openSized(filepath.Join(dir, name), file.Bytes)
			if err != nil {
				return &DamagedError{Tag: h.manifest.Tag, File: name, Err: err}
			}
			h.volumes[i] = append(h.volumes[i], f)
		}
	}
	return nil
}
