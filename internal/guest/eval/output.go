package eval

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// outputChunk is the size of one read from a pipe in bytes. The kernel's pipes hold 64 KiB.
const outputChunk = 16 << 10

// output reads what an interpreter, and the processes that it starts, write to descriptors 1 and 2.
// It passes the data to the sink of the running code. Output that arrives while no code runs is
// dropped.
//
// output holds mu while it reads and passes on a piece of data. So drain waits until other
// goroutines have passed on the data that they have read. After drain, the sink has all output that
// the code has written.
type output struct {
	stdout, stderr *os.File

	mu    sync.Mutex
	sink  func(stream, text string)
	carry map[*os.File][]byte // beginning of a UTF-8 character, until the rest of it is read
	buf   []byte
}

func newOutput(stdout, stderr *os.File) *output {
	return &output{stdout: stdout, stderr: stderr, carry: map[*os.File][]byte{}, buf: make([]byte, outputChunk)}
}

// run reads both pipes until both have ended.
func (o *output) run() {
	go o.pump(o.stderr, "stderr")
	o.pump(o.stdout, "stdout")
}

func (o *output) pump(f *os.File, stream string) {
	raw, err := f.SyscallConn()
	if err != nil {
		return // the pipe was closed
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

// take makes one read from f and passes the data on.
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

// handLocked passes p to the sink in whole characters. If p is the last output, it also passes an
// incomplete character at the end.
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

// incomplete returns the length of the incomplete UTF-8 character at the end of p.
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

// attach sets the sink for all further output. If sink is nil, the output is dropped. After attach
// returns, the previous sink is no longer called.
func (o *output) attach(sink func(stream, text string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sink = sink
}

// drain passes on all data that is in the pipes. It also passes on incomplete characters: the rest
// of such a character will not arrive.
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
