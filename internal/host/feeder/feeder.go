// Package feeder starts forkd-feed processes and is their client. A forkd-feed process serves the
// files of a snapshot that is still arriving from a registry. Each file is decompressed from a
// blob, and a blob consists of frames, which arrive one by one.
//
// The package fetches nothing: the caller fetches and verifies frames, writes them to the blobs,
// and tells forkd-feed. The files are in a FUSE file system without a mount point. forkd-feed exits
// when all other processes, usually VMMs, have closed these files.
package feeder

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// Program says how forkd-feed is started.
type Program struct {
	Bin  string        // path of forkd-feed
	Jail *jail.Starter // nil: no jail, for tests only

	Cgroups *cgroup.Tree // may be nil
}

// Limits of a process's cgroup. The process keeps the indexes of the blobs, which have at most 32
// MiB packed, and decodes few frames at a time. The cgroup's memory includes the page cache of the
// blobs, which the kernel reclaims when needed. A working process has about ten threads.
const (
	memoryMiB = 256
	maxPIDs   = 128
)

// leafPrefix is the prefix of the names of the processes' cgroups. A random part follows.
const leafPrefix = "feed-"

// KeepsLeaf reports whether a cgroup belongs to a process that an earlier daemon has started and that
// still serves VMs. It removes the cgroup of a process that has ended.
func KeepsLeaf(t *cgroup.Tree, name string) bool {
	return strings.HasPrefix(name, leafPrefix) && !t.Find(name).RemoveEmpty()
}

// startTime bounds the time until a process serves its files.
const startTime = 20 * time.Second

// logBytes bounds the standard error of a process, in bytes.
const logBytes = 256 << 10

// File is a file that a process serves.
type File struct {
	Blob artifact.Blob
	Data *os.File // the blob, open for reading only. Its index is there; frames may be missing
}

// Feeder is a forkd-feed process.
type Feeder struct {
	Files []*os.File // the served files, in the order of Start's parameter; Close closes them

	control *feedproto.Control
	process *process.Process
	ended   chan struct{} // closed when the process has exited
	once    sync.Once
	tell    chan feedproto.Message // messages to the process; has room for maxTold
}

// maxTold is how many messages may wait until the process receives them. Only a process that an
// attacker controls can ask for more frames than that.
const maxTold = 4096

// tellTime bounds how long the process may take to receive the last message.
const tellTime = 30 * time.Second

// UnsupportedError reports that this host cannot serve files that are still arriving.
type UnsupportedError struct{ Err error }

func (e *UnsupportedError) Error() string {
	return "this host cannot start a snapshot before all of it is there: " + e.Err.Error()
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Start starts a process that serves the given files. If the host lacks FUSE, or the daemon may not
// use it, the error is an *UnsupportedError. Start arranges that need is called once for each frame
// that a reader waits for. The function need must not block.
func (p Program) Start(files []File, need func(feedproto.Frame)) (_ *Feeder, err error) {
	m, err := mount()
	if err != nil {
		return nil, &UnsupportedError{err}
	}
	defer m.close()
	control, theirs, err := feedproto.NewControl()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	started, leaf, err := p.start(theirs, m.requests)
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	_ = theirs.Close()     // while the daemon has this end open, it does not notice the end of the process
	_ = m.requests.Close() // while the daemon has this open, readers wait for ever if the process is killed
	f := &Feeder{control: control, process: started, ended: make(chan struct{}),
		tell: make(chan feedproto.Message, maxTold)}
	go func() {
		_ = started.Wait()
		_ = leaf.Remove() // if this fails, the next daemon removes it
		close(f.ended)
	}()
	late := time.AfterFunc(startTime, func() { _ = started.Kill() })
	defer late.Stop()
	if err = f.setUp(files); err == nil {
		err = f.openAll(m, files)
	}
	if err != nil {
		_ = started.Kill()
		<-f.ended
		f.Close()
		if said := started.Said(); said != "" {
			err = fmt.Errorf("%w: it says %.300q", err, said)
		}
		return nil, fmt.Errorf("start forkd-feed: %w", err)
	}
	go f.receive(need)
	go f.send()
	return f, nil
}

// start starts a process in a cgroup of its own.
func (p Program) start(files ...*os.File) (_ *process.Process, leaf *cgroup.Leaf, err error) {
	if leaf, err = p.Cgroups.NewShared(leafPrefix+rand.Text(), memoryMiB, maxPIDs); err != nil {
		return nil, nil, err
	}
	dir, err := leaf.Open()
	if err != nil {
		return nil, nil, errors.Join(err, leaf.Remove())
	}
	defer dir.Close() // Close of a nil file only returns an error
	started, err := process.Start(process.Spec{Name: "forkd-feed", Bin: p.Bin,
		Env: []string{"GOMAXPROCS=2", "GOMEMLIMIT=64MiB"}, Files: files, LogBytes: logBytes, Cgroup: dir, Jail: p.Jail})
	if err != nil {
		return nil, nil, errors.Join(err, leaf.Remove())
	}
	return started, leaf, nil
}

func (f *Feeder) setUp(files []File) error {
	setup := &feedproto.Setup{}
	var fds []int
	for _, x := range files {
		b := x.Blob
		setup.Files = append(setup.Files, feedproto.File{Name: b.Part.Name, Bytes: b.Part.Bytes, Size: uint64(b.Size),
			IndexBytes: uint64(b.IndexBytes), IndexDigest: b.IndexDigest.String()})
		fds = append(fds, int(x.Data.Fd()))
	}
	if err := f.control.Send(setup, fds...); err != nil {
		return err
	}
	reply, _, err := f.control.Receive()
	if err != nil {
		return err
	}
	if _, ok := reply.(*feedproto.Ready); !ok {
		return fmt.Errorf("it sends %T first", reply)
	}
	return nil
}

func (f *Feeder) openAll(m *mounted, files []File) error {
	for i := range files {
		x, err := m.open(i, files[i].Blob.Part.Bytes)
		if err != nil {
			return err
		}
		f.Files = append(f.Files, x)
	}
	return nil
}

// receive passes on what the process asks for.
func (f *Feeder) receive(need func(feedproto.Frame)) {
	for {
		m, _, err := f.control.Receive()
		if err != nil {
			return
		}
		if n, ok := m.(*feedproto.Need); ok {
			need(n.Frame)
		}
	}
}

// Ended returns a channel that is closed when the process has exited.
func (f *Feeder) Ended() <-chan struct{} { return f.ended }

// send sends the queued messages. It runs in its own goroutine, so a process that does not receive
// its messages blocks no other goroutine.
func (f *Feeder) send() {
	for {
		select {
		case m := <-f.tell:
			if done, ok := m.(*told); ok {
				close(done.sent)
			} else if f.control.Send(m) != nil {
				return // the process or the connection has ended
			}
		case <-f.ended:
			return
		}
	}
}

// told is queued like a message, but not sent. When it reaches the head of the queue, all earlier
// messages have been sent.
type told struct {
	feedproto.Whole
	sent chan struct{}
}

// say queues a message. A process that does not receive its messages is killed.
func (f *Feeder) say(m feedproto.Message) error {
	select {
	case f.tell <- m:
		return nil
	default:
		return errors.Join(errors.New("forkd-feed does not receive its messages"), f.process.Kill())
	}
}

// Have says that a frame is verified and in its blob.
func (f *Feeder) Have(x feedproto.Frame) error { return f.say(&feedproto.Have{Frame: x}) }

// Whole tells the process that all frames are there, and waits until the process has received this
// message. From then on the process does not need the daemon.
func (f *Feeder) Whole() error {
	done := &told{sent: make(chan struct{})}
	if err := errors.Join(f.say(&feedproto.Whole{}), f.say(done)); err != nil {
		return err
	}
	select {
	case <-done.sent:
		return nil
	case <-f.ended:
		return errors.New("forkd-feed has exited")
	case <-time.After(tellTime):
		return errors.Join(errors.New("forkd-feed does not receive its messages"), f.process.Kill())
	}
}

// Lose tells the process that no more frames will arrive. From then on, all reads of missing frames
// fail.
func (f *Feeder) Lose() error { return f.say(&feedproto.Lost{}) }

// Arrival returns a new Arrival of the served files.
func (f *Feeder) Arrival() *Arrival { return NewArrival(f.kill) }

func (f *Feeder) kill() { _ = f.process.Kill() } // fails if it has exited

// Close closes the connection, and the daemon's descriptors of the files. The process continues until
// all other processes have closed the files.
func (f *Feeder) Close() {
	f.once.Do(func() {
		_ = f.control.Close()
		defer watch(answerTime, f.kill)()
		for _, x := range f.Files {
			_ = x.Close()
		}
	})
}
