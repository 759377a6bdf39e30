package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/feedproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// A list of hot frames says which frames the first forks of a snapshot need. So a puller can fetch
// these frames in few requests, before a child asks for them one by one. A push makes the list: it
// lets the snapshot run twice on the pushing host. Every client that can write to the repository
// can write such a list, so it is only a hint: frames are verified as always, and a list that is
// missing, damaged or wrong costs only time.

const (
	hotTime = 10 * time.Second // time limit for fetching a list of hot frames
	maxHot  = 4                // maximum number of lists that are fetched to find a valid one
	hotRuns = 2                // number of first runs from which a list is recorded
)

// findHot returns the list of hot frames of the snapshot with the digest d, both as a file and in
// decoded form. If there is no usable list, both are empty.
func (h *Hub) findHot(ctx context.Context, c *conn, d digest.Digest) (referrer, artifact.Hot) {
	ctx, cancel := context.WithTimeout(ctx, h.hotTime)
	defer cancel()
	refs, err := c.referrers(ctx, d, artifact.HotType)
	for _, ref := range refs[:min(len(refs), maxHot)] {
		var s referrer
		if s, err = c.referrer(ctx, ref, artifact.HotType, artifact.MaxHot); errors.Is(err, errOther) {
			err = nil
			continue
		}
		if err == nil && (s.parsed.Subject == nil || s.parsed.Subject.Digest != d) {
			err = unusable("it is for another snapshot")
		}
		if err == nil && s.parsed.Config.Digest != oci.DescriptorEmptyJSON.Digest {
			err = unusable("its configuration is not empty")
		}
		if err == nil {
			var list artifact.Hot
			if list, err = artifact.ParseHot(s.file); err == nil {
				return s, list
			}
		}
	}
	if err != nil {
		h.cfg.Log.Info("a list of hot frames cannot be used", "snapshot", d, "reason", err)
	}
	return referrer{}, nil
}

// putHot writes a list of hot frames to a repository. It does nothing if there is no list.
func (s referrer) putHot(ctx context.Context, out *remote.Pusher, repo name.Repository) error {
	if len(s.text) == 0 {
		return nil
	}
	return s.put(ctx, out, repo, oci.DescriptorEmptyJSON.Data)
}

// recordHot returns the list of hot frames of a snapshot that is being pushed. It lets the snapshot
// run twice until its first answer, and lists the frames that both runs needed.
func (p *push) recordHot(a *artifact.Artifact) (s referrer, list artifact.Hot, err error) {
	if a.Snapshot.DiskOnly() {
		return s, nil, invalid.Errorf("record_hot", "the snapshot has no memory")
	}
	if p.hub.cfg.Feeder == nil || p.hub.cfg.Rehearse == nil {
		return s, nil, invalid.Errorf("record_hot", "this daemon cannot run snapshots to record their frames")
	}
	if n := indexBytes(a.Blobs); n > p.hub.indexes { // this process and forkd-feed keep all indexes
		return s, nil, invalid.Errorf("record_hot", "the indexes of the snapshot's files have %d bytes, and a run that "+
			"records frames can use at most %d: push it without this", n, p.hub.indexes)
	}
	counts := make(map[feedproto.Frame]int)
	var files []*incoming
	for range hotRuns {
		var seen map[feedproto.Frame]bool
		files, seen, err = p.firstRun(a)
		if unsupported := (*feeder.UnsupportedError)(nil); errors.As(err, &unsupported) {
			return s, nil, invalid.Errorf("record_hot", "%v", unsupported)
		}
		if err != nil {
			return s, nil, fmt.Errorf("record which frames a first run of the snapshot needs: %w", err)
		}
		for f := range seen {
			counts[f]++
		}
	}
	frames := make(map[digest.Digest][]int)
	for f, n := range counts {
		if d := files[f.File].b.Digest; n == hotRuns {
			frames[d] = append(frames[d], int(f.Frame))
		}
	}
	if len(frames) == 0 {
		return s, nil, nil
	}
	list = artifact.HotOf(frames).Fit()
	text, err := list.Encode()
	if err == nil {
		s, err = hotReferrer(a, text)
	}
	return s, list, err
}

// hotReferrer returns the artifact with an encoded list of hot frames of a snapshot.
func hotReferrer(a *artifact.Artifact, text []byte) (referrer, error) {
	subject := oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: a.Digest(), Size: int64(len(a.Manifest))}
	return newReferrer(artifact.HotType, subject, text, nil)
}

// keepHot keeps a list of hot frames for the snapshot with the given ID. It does nothing if the list is
// nil or invalid.
func (h *Hub) keepHot(id string, text []byte) {
	if err := h.hot.Keep(id, text); err != nil {
		h.cfg.Log.Info("a list of hot frames is not kept", "snapshot", id, "reason", err)
	}
}

// Hot returns the list of hot frames that was kept for a snapshot of this host, as an artifact that
// refers to the snapshot's artifact. If there is none, Hot returns nil.
func (h *Hub) Hot(a *artifact.Artifact) *Attached {
	s, err := hotReferrer(a, h.hot.Of(a.Snapshot.ID))
	if len(s.file) == 0 || err != nil {
		return nil
	}
	return &Attached{s.text, oci.DescriptorEmptyJSON.Data, s.file}
}

// firstRun lets the snapshot run until its first answer, with files that a new forkd-feed serves from
// the blobs. It returns the frames that were read. The returned files are closed.
func (p *push) firstRun(a *artifact.Artifact) (files []*incoming, seen map[feedproto.Frame]bool, err error) {
	if err := p.hub.cfg.Room(a.Snapshot.Machine.MemoryBytes, p.hub.cache.dir); err != nil {
		return nil, nil, roomError{err}
	}
	defer func() {
		for _, in := range files {
			in.close()
		}
	}()
	var serve []feeder.File
	for i, b := range a.Blobs {
		if !isServed(b.Part) {
			continue
		}
		blob, err := p.file(i, b)
		if err != nil {
			return files, nil, err
		}
		own, err := disklayer.Reopen(blob) // the process must not be able to write to the blob
		if err != nil {
			return files, nil, err
		}
		in, err := readIncoming(own, b)
		if err != nil {
			return files, nil, err
		}
		files, serve = append(files, in), append(serve, feeder.File{Blob: b, Data: own})
	}
	var mu sync.Mutex // guards seen
	seen = make(map[feedproto.Frame]bool)
	q := queueOf(files, noCounts{}.FrameArrived)
	f, err := p.hub.cfg.Feeder.Start(serve, func(x feedproto.Frame) {
		if q.Exists(x) {
			mu.Lock()
			seen[x] = true
			mu.Unlock()
		}
		q.Need(x)
	})
	if err != nil {
		return files, nil, err
	}
	defer f.Close()
	q.Start(f.Have)
	if err := p.rehearse(a, f); err != nil {
		return files, nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	return files, maps.Clone(seen), nil
}

// isServed reports whether forkd-feed serves a file of a snapshot.
func isServed(p artifact.Part) bool {
	switch p.Name {
	case artifact.StatePart, artifact.MapPart, artifact.KernelPart, artifact.InitramfsPart:
		return false
	}
	return true
}

// rehearse lets the snapshot run until its first answer. The feeder serves its files, in the order of the
// blobs.
func (p *push) rehearse(a *artifact.Artifact, f *feeder.Feeder) (err error) {
	m := a.Snapshot
	s := helpervm.Saved{Machine: m.Machine}
	var undo cleanup.Stack
	defer undo.Run()
	watched := f.Arrival().Watch()
	served, err := chain.Reopened(&undo, f.Files)
	watched()
	if err != nil {
		return err
	}
	for i, b := range a.Blobs {
		switch {
		case b.Part.Name == artifact.StatePart:
			state, err := chain.Reopened(&undo, p.from.Files[i:i+1])
			if err != nil {
				return err
			}
			s.State = state[0]
		case b.Part.Name == artifact.MapPart:
			if s.Extents, err = extentsOf(p.from.Files[i], m); err != nil {
				return err
			}
		case !isServed(b.Part):
		case b.Part.Name == artifact.BasePart: // follows the layers
			s.Disk, served = append(served[:1:1], s.Disk...), served[1:]
		case strings.HasPrefix(b.Part.Name, artifact.DiskPart):
			s.Disk, served = append(s.Disk, served[0]), served[1:]
		default:
			s.Layers, served = append(s.Layers, served[0]), served[1:]
		}
	}
	if m.Disk != nil {
		s.DiskBytes = m.Disk.SizeBytes
		if s.Top, err = p.hub.cache.create(); err != nil {
			return err
		}
		undo.Add(func() { _ = errors.Join(s.Top.Close(), os.Remove(s.Top.Name())) }) // the next daemon tries again
	}
	leave, err := p.hub.wait(p.ctx, p.who)
	if err != nil {
		return err
	}
	defer leave()
	return p.hub.cfg.Rehearse(p.ctx, s)
}

// extentsOf reads the memory map of a snapshot.
func extentsOf(f *os.File, m *snapshot.Manifest) ([]vm.Extent, error) {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, int64(snapshot.MaxMemoryMap)+1))
	if err != nil {
		return nil, err
	}
	return snapshot.ParseMemoryMap(text, m.MemorySizes(), vm.RAMEnd(m.Machine.MemoryBytes))
}
