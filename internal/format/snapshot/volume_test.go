package snapshot

import (
	"reflect"
	"strings"
	"testing"
)

// volumes returns a manifest with two volumes.
func volumes(t *testing.T) *Manifest {
	t.Helper()
	m := sample(t)
	m.Machine.VolumeSlots = 2
	for _, name := range []string{"data", "cache"} {
		own := NewID()
		m.Volumes = append(m.Volumes, Volume{ID: VolumeID + own, Name: name, Path: "/srv/" + name, ReadOnly: name == "cache",
			SizeBytes: 16 << 20, Files: []File{{Owner: own, Bytes: 16 << 20}, {Owner: NewID(), Bytes: 16<<20 + 8192}}})
	}
	return m
}

func TestVolumes(t *testing.T) {
	free := volumes(t)
	free.Volumes[0] = Volume{Free: true}
	for _, m := range []*Manifest{volumes(t), free} {
		text, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseManifest(text); err != nil || !reflect.DeepEqual(again.Volumes, m.Volumes) {
			t.Errorf("read again: %+v, %v", again, err)
		}
	}
	for name, breakIt := range map[string]func(m *Manifest, v *Volume){
		"more than slots": func(m *Manifest, _ *Volume) { m.Machine.VolumeSlots = 1 },
		"no disk":         func(m *Manifest, _ *Volume) { m.Disk = nil },
		"foreign id":      func(_ *Manifest, v *Volume) { v.ID = "vol-x" },
		"id of a layer":   func(_ *Manifest, v *Volume) { v.ID = NewID() },
		"traversing name": func(_ *Manifest, v *Volume) { v.Name = "../x" },
		"relative path":   func(_ *Manifest, v *Volume) { v.Path = "srv" },
		"unclean path":    func(_ *Manifest, v *Volume) { v.Path = "/srv/../etc" },
		"long path":       func(_ *Manifest, v *Volume) { v.Path = "/" + strings.Repeat("p", maxVolumePath) },
		"no size":         func(_ *Manifest, v *Volume) { v.SizeBytes = 0 },
		"huge":            func(_ *Manifest, v *Volume) { v.SizeBytes, v.Files[0].Bytes = 1<<50, 1<<50 },
		"no files":        func(_ *Manifest, v *Volume) { v.Files = nil },
		"short base":      func(_ *Manifest, v *Volume) { v.Files[0].Bytes-- },
		"foreign base":    func(_ *Manifest, v *Volume) { v.Files[0].Owner = NewID() },
		"long layer":      func(_ *Manifest, v *Volume) { v.Files[1].Bytes = 1 << 40 },
		"traversing file": func(_ *Manifest, v *Volume) { v.Files[1].Owner = "../../x" },
		"same file twice": func(_ *Manifest, v *Volume) { v.Files[1].Owner = v.Files[0].Owner },
		"bad digest":      func(_ *Manifest, v *Volume) { v.Files[1].Digest = "x" },
		"last and free":   func(_ *Manifest, v *Volume) { *v = Volume{Free: true} },
		"free with files": func(m *Manifest, v *Volume) { m.Volumes[0].Free = true },
		"only a name":     func(m *Manifest, v *Volume) { m.Volumes[0] = Volume{Name: "data"} },
		"nothing":         func(m *Manifest, v *Volume) { m.Volumes[0] = Volume{} },
		"free, read-only": func(m *Manifest, v *Volume) { m.Volumes[0] = Volume{Free: true, ReadOnly: true} },
		"too many files": func(_ *Manifest, v *Volume) {
			for range MaxChain {
				v.Files = append(v.Files, File{Owner: NewID(), Bytes: 1})
			}
		},
	} {
		m := volumes(t)
		breakIt(m, &m.Volumes[1])
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	disk := diskOnly(t)
	disk.Machine.VolumeSlots, disk.Volumes = 2, volumes(t).Volumes
	if _, err := disk.Encode(); err == nil {
		t.Error("a disk-only snapshot with volumes: encoded")
	}
}
