package store

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// BenchmarkMany measures a store of many branches: its start, and operations that must not look at
// every branch. 'go test -bench Many -benchtime 1x ./internal/host/store' prints the table.
func BenchmarkMany(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := manyBranches(b, n)
			var start, cool, detail, remove time.Duration
			for b.Loop() {
				var s *Store
				start += elapsed(func() { s = d.open(b) })
				some := slices.Collect(maps.Keys(s.byTag))[:100]
				cool += elapsed(func() { each(b, some, func(tag string) error { s.Cool(tag); return nil }) })
				detail += elapsed(func() { each(b, some, func(tag string) error { _, err := s.Detail(tag); return err }) })
				remove += elapsed(func() {
					each(b, some, func(tag string) error { _, err := s.Delete(tag, DeleteForce); return err })
				})
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			runs := float64(b.N)
			b.ReportMetric(start.Seconds()/runs, "s/start")
			for name, of := range map[string]time.Duration{"cool": cool, "detail": detail, "delete": remove} {
				b.ReportMetric(float64(of.Microseconds())/100/runs, "µs/"+name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func elapsed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func each(b *testing.B, tags []string, f func(tag string) error) {
	for _, tag := range tags {
		if err := f(tag); err != nil {
			b.Fatal(err)
		}
	}
}

// manyBranches returns the directories of a store with n branches of one snapshot. The branches
// have only manifests.
func manyBranches(b *testing.B, n int) dirs {
	d := newDirs(b)
	s := d.open(b)
	publish(b, s, d, "base", "")
	publish(b, s, d, "child", "base")
	s.Quiesce()
	m := *s.byTag["child"].manifest
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		m := m
		m.Tag, m.ID = fmt.Sprintf("t%d", i), snapshot.NewID()
		m.State.Owner, m.Map.Owner = m.ID, m.ID
		m.Memory, m.Disk = slices.Clone(m.Memory), new(*m.Disk)
		m.Disk.Layers = slices.Clone(m.Disk.Layers)
		m.Memory[len(m.Memory)-1].Owner, m.Disk.Layers[len(m.Disk.Layers)-1].Owner = m.ID, m.ID
		p, err := m.Encode()
		if err != nil {
			b.Fatal(err)
		}
		dir := filepath.Join(d.root, "snapshots", m.Tag)
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, snapshot.ManifestFile), p, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return d
}
