package snapshot

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

var update = flag.Bool("update", false, "write the golden files anew")

func sample(t *testing.T) *Manifest {
	t.Helper()
	id, base := NewID(), NewID()
	return &Manifest{
		ID: id, Tag: "python-numpy", Created: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Parent:  &Ref{ID: base, Tag: "base"},
		Root:    base,
		Machine: Machine{MemoryBytes: 512 << 20, VCPUs: 2, Template: "host", Accel: "kvm"},
		Guest: Guest{Kernel: "6.12", Warm: []string{"python"}, Hostname: "forkd",
			Defaults: Defaults{Env: map[string]string{"A": "<b>"}, User: "app", Dir: "/srv"}},
		State: File{Owner: id, Bytes: 100},
		Map:   File{Owner: id, Bytes: 40},
		Memory: []File{{Owner: base, Bytes: 4096, Digest: digestPrefix + strings.Repeat("0a", 32)},
			{Owner: id, Bytes: 8192}},
		Branch: &Branch{SandboxID: "sb-x", Mode: "live", After: &Ref{ID: base, Tag: "base"},
			Labels: map[string]string{"job": "7 <b>"}},
		Disk: &Disk{SizeBytes: 1 << 30, Base: Base{Bytes: 1 << 30, Digest: digestPrefix + strings.Repeat("0b", 32)},
			Layers: []File{{Owner: base, Bytes: 1}, {Owner: id, Bytes: 2}}},
		Boot: &Boot{Kernel: Base{Bytes: 3, Digest: digestPrefix + strings.Repeat("0c", 32)},
			Initrd: Base{Bytes: 4, Digest: digestPrefix + strings.Repeat("0d", 32)}},
	}
}

// diskOnly returns a valid manifest of a snapshot without memory.
func diskOnly(t *testing.T) *Manifest {
	t.Helper()
	m := sample(t)
	m.State, m.Map, m.Memory = File{}, File{}, nil
	m.Branch.Mode = "disk"
	return m
}

// The bytes of a manifest of this version must never change, because snapshots are kept for years.
func TestGolden(t *testing.T) {
	const id, base = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "baaaaaaaaaaaaaaaaaaaaaaaaa"
	slots := volumes(t)
	slots.Volumes[0] = Volume{Free: true}
	for name, m := range map[string]*Manifest{"memory": sample(t), "disk-only": diskOnly(t), "volumes": slots} {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range m.VolumeFiles() { // random IDs
			text = bytes.ReplaceAll(text, []byte(f.Owner), []byte(strings.Repeat("eimq"[i:i+1], 26)))
		}
		text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte(m.ID), []byte(id)), []byte(m.Parent.ID), []byte(base))
		fixed := new(Manifest)
		if err := json.Unmarshal(text, fixed); err != nil {
			t.Fatal(err)
		}
		got, err := fixed.Encode()
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", fmt.Sprintf("manifest-%d-%s.json", Version, name))
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what version %d writes: raise the version, or mend it\n%s", golden, Version, got)
		}
		if m, err := ParseManifest(want); err != nil || m.DiskOnly() != (name == "disk-only") {
			t.Errorf("%s: %v", golden, err)
		}
	}
}

// A manifest keeps the number of volume slots. A manifest without volume slots omits the field.
func TestVolumeSlots(t *testing.T) {
	m := sample(t)
	for _, slots := range []uint32{0, vm.MaxVolumeSlots} {
		m.Machine.VolumeSlots = slots
		text, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseManifest(text); err != nil || again.Machine.VolumeSlots != slots {
			t.Errorf("%d slots, read again: %+v, %v", slots, again, err)
		}
		if named := bytes.Contains(text, []byte("volume_slots")); named != (slots > 0) {
			t.Errorf("%d slots: %s", slots, text)
		}
	}
}

// Manifests of earlier versions can be read, and get the present version when they are written
// again. Manifests of version 5 have no default user and no default directory.
func TestOlderVersionsAreRead(t *testing.T) {
	for _, name := range []string{"5-memory", "5-disk-only", "6-memory", "6-disk-only"} {
		text, err := os.ReadFile(filepath.Join("testdata", "manifest-"+name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := ParseManifest(text)
		if err != nil {
			t.Fatal(err)
		}
		first := m.Version == 5
		if name[:1] != fmt.Sprint(m.Version) || m.Guest.Env["A"] != "<b>" || (m.Guest.User == "") != first ||
			(m.Guest.Dir == "") != first {
			t.Errorf("%s: version %d with %+v", name, m.Version, m.Guest.Defaults)
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if m, err = ParseManifest(again); err != nil || m.Version != Version {
			t.Errorf("%s, written again: %v", name, err)
		}
		for field, set := range map[string]func(m *Manifest){
			"user": func(m *Manifest) { m.Guest.User = "app" },
			"root": func(m *Manifest) { m.Root = m.Parent.ID },
			"free": func(m *Manifest) {
				m.Machine.VolumeSlots, m.Version = 2, 6
				m.Volumes = []Volume{{Free: true}, volumes(t).Volumes[1]}
			},
		} {
			if m.DiskOnly() && field == "free" || !first && field != "free" {
				continue // without memory there are no volumes; version 6 has the other fields
			}
			newer := *m
			newer.Version = 5
			set(&newer)
			if newer.Checksum, err = newer.sum(); err != nil {
				t.Fatal(err)
			}
			if text, err = newer.marshal(); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("%s: version %d", field, newer.Version)
			if _, err := ParseManifest(text); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: version %d with the field %s: %v", name, newer.Version, field, err)
			}
		}
	}
}

// Set fields and variables replace the fields and variables of older defaults. The older defaults
// themselves do not change.
func TestDefaultsAddUp(t *testing.T) {
	older := Defaults{Env: map[string]string{"A": "1", "B": "1"}, User: "app", Dir: "/srv"}
	got := older.With(Defaults{Env: map[string]string{"B": "2"}, Dir: "/home"})
	want := Defaults{Env: map[string]string{"A": "1", "B": "2"}, User: "app", Dir: "/home"}
	if !reflect.DeepEqual(got, want) || older.Env["B"] != "1" {
		t.Errorf("%+v of %+v", got, older)
	}
	if got := older.With(Defaults{}); !reflect.DeepEqual(got, older) {
		t.Errorf("%+v of %+v and nothing", got, older)
	}
}

// A snapshot has either a complete memory or none. Without memory it has a disk, and files to boot
// it.
func TestDiskOnlyRules(t *testing.T) {
	for name, breakIt := range map[string]func(m, whole *Manifest){
		"a state":          func(m, whole *Manifest) { m.State = whole.State },
		"a map":            func(m, whole *Manifest) { m.Map = whole.Map },
		"no disk":          func(m, _ *Manifest) { m.Disk = nil },
		"nothing to boot":  func(m, _ *Manifest) { m.Boot = nil },
		"a foreign layer":  func(m, _ *Manifest) { m.Disk.Layers[1].Owner = NewID() },
		"kernel of 0 byte": func(m, _ *Manifest) { m.Boot.Kernel.Bytes = 0 },
	} {
		m, whole := diskOnly(t), sample(t)
		whole.State.Owner, whole.Map.Owner = m.ID, m.ID
		breakIt(m, whole)
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestManifestRoundTrip(t *testing.T) {
	m := sample(t)
	p, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseManifest(p)
	if err != nil {
		t.Fatal(err)
	}
	again, err := got.Encode()
	if err != nil || string(again) != string(p) {
		t.Fatalf("second encoding differs (err %v)", err)
	}
}

// Manifests store durations in whole microseconds, as earlier builds do.
func TestBranchFigures(t *testing.T) {
	const text = `{"sandbox_id":"","mode":"live","pause_us":1500,"stop_us":7,"ready_us":2000000,"dirty_bytes":0}`
	want := Branch{Mode: "live", Pause: Micros(1500 * time.Microsecond), Stop: Micros(7 * time.Microsecond),
		Ready: Micros(2 * time.Second)}
	var got Branch
	if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	if p, err := json.Marshal(&got); err != nil || string(p) != text {
		t.Fatalf("%s, %v", p, err)
	}
	for _, bad := range []string{"-1", "1.5", `"1"`, "9223372036854776"} {
		if err := json.Unmarshal([]byte(`{"pause_us":`+bad+`}`), &got); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}

// A manifest is refused if any bit is flipped, or if it is truncated at any position.
func TestManifestDamageIsRefused(t *testing.T) {
	p, err := sample(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range p {
		if _, err := ParseManifest(p[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes: accepted", n, len(p))
		}
	}
	for i := range p {
		for bit := range 8 {
			p[i] ^= 1 << bit
			if _, err := ParseManifest(p); err == nil {
				t.Fatalf("bit %d of byte %d (%q) flipped: accepted", bit, i, p[i])
			}
			p[i] ^= 1 << bit
		}
	}
	if _, err := ParseManifest(append(p, ' ')); err == nil {
		t.Error("trailing space: accepted")
	}
}

func TestManifestOtherFormatsAreNamed(t *testing.T) {
	for in, want := range map[string]string{
		`{"format":"other","version":5}`:                   "not a forkd snapshot",
		`{"format":"forkd-snapshot","version":3}`:          "version 3",
		`{"format":"forkd-snapshot","version":8}`:          "version 8",
		`{"format":"forkd-snapshot","version":7,"x":true}`: "unknown field",
		`{"format":"forkd-snapshot","version":5,"x":true}`: "unknown field",
		`{"vmstate":"/a","memory":"/b"}`:                   "not a forkd snapshot",
	} {
		if _, err := ParseManifest([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", in, err, want)
		}
	}
}

func TestManifestRules(t *testing.T) {
	for name, breakIt := range map[string]func(*Manifest){
		"traversing tag":         func(m *Manifest) { m.Tag = "../x" },
		"foreign id":             func(m *Manifest) { m.ID = "x" },
		"own parent":             func(m *Manifest) { m.Parent.ID = m.ID },
		"no memory":              func(m *Manifest) { m.Machine.MemoryBytes = 0 },
		"odd memory":             func(m *Manifest) { m.Machine.MemoryBytes = 4097 },
		"no vcpus":               func(m *Manifest) { m.Machine.VCPUs = 0 },
		"no template":            func(m *Manifest) { m.Machine.Template = "" },
		"foreign state":          func(m *Manifest) { m.State.Owner = m.Parent.ID },
		"long state":             func(m *Manifest) { m.State.Bytes = vm.MaxStateBytes + 1 },
		"long memory layer":      func(m *Manifest) { m.Memory[1].Bytes = m.Machine.MemoryBytes + 1 },
		"long layer below":       func(m *Manifest) { m.Memory[0].Bytes = m.Machine.MemoryBytes + 1 },
		"long disk layer":        func(m *Manifest) { m.Disk.Layers[1].Bytes = m.Disk.SizeBytes * 2 },
		"no layers":              func(m *Manifest) { m.Memory = nil },
		"boot without initrd":    func(m *Manifest) { m.Boot.Initrd = Base{} },
		"boot by a path":         func(m *Manifest) { m.Boot.Kernel.Digest = "/vmlinux" },
		"chain without a parent": func(m *Manifest) { m.Parent = nil },
		"same owner twice":       func(m *Manifest) { m.Memory[0].Owner = m.ID },
		"foreign top layer":      func(m *Manifest) { m.Memory[1].Owner = NewID() },
		"bad digest":             func(m *Manifest) { m.Memory[0].Digest = digestPrefix + "AB" },
		"unknown digest":         func(m *Manifest) { m.Memory[0].Digest = strings.Repeat("0a", 32) },
		"disk below its base":    func(m *Manifest) { m.Disk.SizeBytes = 1 },
		"no base":                func(m *Manifest) { m.Disk.Base.Digest = "" },
		"base by its path":       func(m *Manifest) { m.Disk.Base.Digest = "/etc/passwd" },
		"too much memory":        func(m *Manifest) { m.Machine.MemoryBytes = vm.MaxMemoryBytes + 4096 },
		"too many volume slots":  func(m *Manifest) { m.Machine.VolumeSlots = vm.MaxVolumeSlots + 1 },
		"too many vcpus":         func(m *Manifest) { m.Machine.VCPUs = vm.MaxVCPUs + 1 },
		"env name":               func(m *Manifest) { m.Guest.Env["a=b"] = "" },
		"env bytes":              func(m *Manifest) { m.Guest.Env["a"] = "\xff" },
		"user bytes":             func(m *Manifest) { m.Guest.User = "\xff" },
		"workdir with a zero":    func(m *Manifest) { m.Guest.Dir = "/a\x00b" },
		"long user":              func(m *Manifest) { m.Guest.User = strings.Repeat("u", maxName+1) },
		"long workdir":           func(m *Manifest) { m.Guest.Dir = "/" + strings.Repeat("d", maxName) },
	} {
		m := sample(t)
		breakIt(m)
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestTag(t *testing.T) {
	for _, tag := range []string{"a", "_", "A.b-c_9", strings.Repeat("x", MaxTag)} {
		if err := CheckTag(tag); err != nil {
			t.Errorf("%q: %v", tag, err)
		}
	}
	for _, tag := range []string{"", ".", "..", "-a", ".a", "a/b", "a b", "ä", "a\x00", strings.Repeat("x", MaxTag+1)} {
		if CheckTag(tag) == nil {
			t.Errorf("%q: accepted", tag)
		}
	}
	for tag, want := range map[string]string{
		"aü":                          `"aü": character 'ü' at position 2:`,
		"ßü":                          `character 'ß' at position 1:`,
		"a\xff":                       "character '\uFFFD' at position 2:",
		strings.Repeat("x", MaxTag+1): "it has 129 characters",
		strings.Repeat("ü", 500):      `"` + strings.Repeat("ü", MaxTag) + `": character 'ü' at position 1:`,
	} {
		if err := CheckTag(tag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", tag, err, want)
		}
	}
}

func TestIDsAreDistinctAndChecked(t *testing.T) {
	a, b := NewID(), NewID()
	if a == b || CheckID(a) != nil || CheckID(b) != nil {
		t.Errorf("ids %q, %q", a, b)
	}
	for _, id := range []string{"", "../../etc", a[1:], a + "a", strings.ToUpper(a)} {
		if CheckID(id) == nil {
			t.Errorf("%q: accepted", id)
		}
	}
}
