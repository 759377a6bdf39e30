package store

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/snapshot"
)

// sealer computes the digests of published snapshots in the background, one snapshot at a time and at the lowest
// priority, and writes them into their manifests. A snapshot is complete and usable without them; verify is not.
type sealer struct {
	store  *Store
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	queue []string
	tag   string             // the one at hand, or empty
	stop  context.CancelFunc // gives it up
	wake  chan struct{}      // has room for one
}

func newSealer(s *Store) *sealer {
	ctx, cancel := context.WithCancel(context.Background())
	q := &sealer{store: s, cancel: cancel, done: make(chan struct{}), stop: func() {}, wake: make(chan struct{}, 1)}
	go q.run(ctx)
	return q
}

func (q *sealer) add(tag string) {
	q.mu.Lock()
	q.queue = append(q.queue, tag)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next takes a tag off the queue, and returns it with the time to seal it in; nothing if there is none.
func (q *sealer) next(ctx context.Context) (context.Context, string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stop()
	q.tag = ""
	if len(q.queue) > 0 {
		q.tag, q.queue = q.queue[0], q.queue[1:]
	}
	ctx, q.stop = context.WithCancel(ctx)
	return ctx, q.tag
}

// drop gives up a snapshot that is being removed: its files take their space until they are closed.
func (q *sealer) drop(tag string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tag == tag {
		q.stop()
	}
	q.queue = slices.DeleteFunc(q.queue, func(queued string) bool { return queued == tag })
}

func (q *sealer) close() {
	q.cancel()
	<-q.done
}

// lowestNice is the largest nice value, setpriority(2).
const lowestNice = 19

func (q *sealer) run(ctx context.Context) {
	defer close(q.done)
	// The thread is never unlocked, so it ends with the goroutine and its priority with it.
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestNice)
	for {
		if sealing, tag := q.next(ctx); tag != "" {
			// A failure leaves the snapshot unsealed: verify reports it and the next start tries again.
			_ = q.store.seal(sealing, tag)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
	}
}

// sealed reports whether m has all its digests.
func sealed(m *snapshot.Manifest) bool {
	missing := m.State.Digest == "" || m.Map.Digest == ""
	for _, l := range m.Memory {
		missing = missing || l.Digest == ""
	}
	if m.Disk != nil {
		missing = missing || m.Disk.Base.Digest == ""
		for _, l := range m.Disk.Layers {
			missing = missing || l.Digest == ""
		}
	}
	return !missing
}

// digested is a file of a snapshot and the place of its digest.
type digested struct {
	name string
	path string
	want *string
}

// files lists the files of m and of its chain. The digests point into m.
func (s *Store) files(m *snapshot.Manifest) []digested {
	list := []digested{
		{snapshot.StateFile, s.file(m.Tag, snapshot.StateFile), &m.State.Digest},
		{snapshot.MemoryMapFile, s.file(m.Tag, snapshot.MemoryMapFile), &m.Map.Digest},
	}
	add := func(base string, layers []snapshot.File) {
		for i := range layers {
			name := snapshot.LayerFile(base, m.ID, layers[i].Owner)
			list = append(list, digested{name, s.file(m.Tag, name), &layers[i].Digest})
		}
	}
	add(snapshot.MemoryLayerFile, m.Memory)
	if m.Disk == nil {
		return list
	}
	list = append(list, digested{"base image " + m.Disk.Base.Path, m.Disk.Base.Path, &m.Disk.Base.Digest})
	add(snapshot.DiskLayerFile, m.Disk.Layers)
	return list
}

// seal fills in the missing digests of one snapshot.
func (s *Store) seal(ctx context.Context, tag string) error {
	m, err := readManifest(s.file(tag, snapshot.ManifestFile))
	if err != nil {
		return err
	}
	s.inheritDigests(m)
	for _, f := range s.files(m) {
		if *f.want == "" {
			if *f.want, err = digest(ctx, f.path); err != nil {
				return err
			}
		}
	}
	p, err := m.Encode()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byTag[tag]
	if e == nil || e.deleting || e.manifest == nil || e.manifest.ID != m.ID {
		return nil // deleted meanwhile
	}
	path := s.file(tag, snapshot.ManifestFile)
	if err := writeSynced(path+".new", p); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	e.manifest = m
	return syncDir(s.dir(tag))
}

// inheritDigests takes the digests of files that other snapshots share from their manifests.
func (s *Store) inheritDigests(m *snapshot.Manifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[[2]string]string)
	learn := func(kind string, layers []snapshot.File) {
		for _, l := range layers {
			if l.Digest != "" {
				known[[2]string{kind, l.Owner}] = l.Digest
			}
		}
	}
	for _, e := range s.byTag {
		if e.manifest == nil {
			continue
		}
		learn(snapshot.MemoryLayerFile, e.manifest.Memory)
		if d := e.manifest.Disk; d != nil {
			learn(snapshot.DiskLayerFile, d.Layers)
			if m.Disk != nil && m.Disk.Base.Digest == "" && d.Base.Path == m.Disk.Base.Path && d.Base.Bytes == m.Disk.Base.Bytes {
				m.Disk.Base.Digest = d.Base.Digest
			}
		}
	}
	teach := func(kind string, layers []snapshot.File) {
		for i := range layers {
			if layers[i].Digest == "" {
				layers[i].Digest = known[[2]string{kind, layers[i].Owner}]
			}
		}
	}
	teach(snapshot.MemoryLayerFile, m.Memory)
	if m.Disk != nil {
		teach(snapshot.DiskLayerFile, m.Disk.Layers)
	}
}

// Verify reads every file of the snapshot and of its chain and compares the digests. The error is a *DamagedError that
// names the first file that differs. Digests that are not recorded yet are computed and recorded first.
func (s *Store) Verify(ctx context.Context, tag string) error {
	lease, err := s.Acquire(tag)
	if err != nil {
		return err
	}
	defer lease.Release()
	if err := s.WaitFlushed(ctx, tag); err != nil {
		return err
	}
	if !sealed(s.manifestOf(tag)) {
		if err := s.seal(ctx, tag); err != nil {
			return fmt.Errorf("verify snapshot %q: %w", tag, err)
		}
	}
	m, err := readManifest(s.file(tag, snapshot.ManifestFile))
	if err != nil {
		return &DamagedError{Tag: tag, File: snapshot.ManifestFile, Err: err}
	}
	for _, f := range s.files(m) {
		got, err := digest(ctx, f.path)
		if err == nil && got != *f.want {
			err = fmt.Errorf("digest is %.20s…, the manifest says %.20s…: the content was changed", got, *f.want)
		}
		if err != nil {
			return &DamagedError{Tag: tag, File: f.name, Err: err}
		}
	}
	return nil
}

// manifestOf returns the manifest of a leased snapshot.
func (s *Store) manifestOf(tag string) *snapshot.Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTag[tag].manifest
}
