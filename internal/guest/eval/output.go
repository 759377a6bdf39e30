package eval

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// outputChunk is how much is read from a pipe at once; the kernel's pipes hold 64 KiB.
const outputChunk = 16 << 10

// output reads what an interpreter and the processes it starts write to descriptors 1 and 2, and
// hands it to the sink of the code that is running. What is written while no code runs is dropped.
//
// Reading and handing over are one step under mu, so that drain, after the driver's word that the
// code has ended, hands over all that was written before.
type output struct {
	stdout, stderr *os.File

	mu    sync.Mutex
	sink  func(stream, text string)
	carry map[*os.File][]byte // the beginning of a UTF-8 sequence whose rest has not been read
	buf   []byte
}

func newOutput(stdout, stderr *os.File) *output {
	return &output{stdout: stdout, stderr: stderr, carry: map[*os.File][]byte{}, buf: make([]byte, outputChunk)}
}

// run reads both pipes until they end.
func (o *output) run() {
	go o.pump(o.stderr, "stderr")
	o.pump(o.stdout, "stdout")
}

func (o *output) pump(f *os.File, stream string) {
	raw, err := f.SyscallConn()
	if err != nil {
		return // closed
	}
	for ended := false; !ended; {
		err := raw.Read(func(fd uintptr) bool {
			n, err := o.take(fd, f, stream)
			ended = n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil {
			return
		}
	}
}

// take reads once and hands over what it got.
func (o *output) take(fd uintptr, f *os.File, stream string) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, err := syscall.Read(int(fd), o.buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return -1, err
		}
		o.handLocked(f, stream, o.buf[:n], n == 0)
		return n, nil
	}
}

// handLocked passes p to the sink in whole characters; at the end the rest goes too.
func (o *output) handLocked(f *os.File, stream string, p []byte, last bool) {
	text := append(o.carry[f], p...)
	keep := 0
	if !last {
		keep = incomplete(text)
	}
	o.carry[f] = append([]byte(nil), text[len(text)-keep:]...)
	if text = text[:len(text)-keep]; len(text) > 0 && o.sink != nil {
		o.sink(stream, string(text))
	}
}

// incomplete returns how many bytes at the end of p begin a UTF-8 sequence without finishing it.
func incomplete(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if tail := p[len(p)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// attach directs output to sink from now on; nil drops it. When attach returns, the former sink is
// not running.
func (o *output) attach(sink func(stream, text string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sink = sink
}

// drain hands over everything that is in the pipes now, and character beginnings whose rest will
// not come.
func (o *output) drain() {
	for stream, f := range map[string]*os.File{"stdout": o.stdout, "stderr": o.stderr} {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		raw.Control(func(fd uintptr) {
			for {
				if n, err := o.take(fd, f, stream); n <= 0 || err != nil {
					break
				}
			}
		})
		o.mu.Lock()
		o.handLocked(f, stream, nil, true)
		o.mu.Unlock()
	}
}

func (o *output) close() {
	o.stdout.Close()
	o.stderr.Close()
}
