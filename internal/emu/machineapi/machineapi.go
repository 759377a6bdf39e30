// Package machineapi defines the protocol between the host and forkd-machined, the init of the
// emulated host of `forkd machine`. It has the HTTP paths, the JSON bodies and the frames of an
// exec stream.
//
// The package opens no connections. Both sides belong to the same build, so there is no negotiation
// of versions.
package machineapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Ports inside the emulated host. A loopback port of the real host is forwarded to each of them.
const (
	InitPort   = 8888 // forkd-machined's own API
	DaemonPort = 8889 // the forkd daemon's API
)

// Paths of forkd-machined's API. Every request must have the header "Authorization: Bearer
// <token>".
const (
	PathPing     = "/ping"     // GET → Ping
	PathSpace    = "/space"    // GET with one or more dir=PATH in the query → Space
	PathExec     = "/exec"     // POST with Upgrade → frames in both directions, the first one FrameStart
	PathDaemon   = "/daemon"   // GET → DaemonStatus; PUT DaemonStart
	PathPowerOff = "/poweroff" // POST → 202, then the emulated host goes down
)

// Upgrade is the protocol name of an exec stream.
const Upgrade = "forkd-machine-exec"

// ConfigPath is the path of the init's Config in the initramfs.
const ConfigPath = "/etc/forkd/machine.json"

// ModulesDir is the directory of the kernel modules in the initramfs. Modules are loaded in the
// order of their file names.
const ModulesDir = "/lib/forkd-modules"

// StateDir is the mount point of the state disk.
const StateDir = "/var/lib/forkd"

// Config is the configuration that the host writes into the emulated host's initramfs.
type Config struct {
	Token  string  `json:"token"`   // bearer token of the init's API
	BootID string  `json:"boot_id"` // identifies this boot; see Ping
	Shares []Share `json:"shares"`
}

// Share is a directory of the host that the emulated host has under the same absolute path. If the
// share is not writable, the emulator refuses writes.
type Share struct {
	Tag      string `json:"tag"` // 9p mount tag
	Dir      string `json:"dir"`
	Writable bool   `json:"writable,omitempty"`
}

// Ping is the answer of a running emulated host.
type Ping struct {
	BootID        string  `json:"boot_id"`
	UptimeSeconds float64 `json:"uptime_seconds"` // since the emulated host's kernel started
}

// ExecStart is a program to run. Argv[0] is looked up in the emulated host's PATH.
type ExecStart struct {
	Argv      []string `json:"argv"`
	Env       []string `json:"env,omitempty"` // KEY=VALUE, added to the emulated host's own environment
	Dir       string   `json:"dir,omitempty"` // default: /
	TimeoutMS int64    `json:"timeout_ms,omitempty"`
}

// ExecExit is the last message of an exec stream. Of these fields, the first one that is set
// applies: Error (nothing was run), TimedOut, Signal, Code.
type ExecExit struct {
	Error    string `json:"error,omitempty"`
	NotFound bool   `json:"not_found,omitempty"` // with Error: the program does not exist
	TimedOut bool   `json:"timed_out,omitempty"`
	Signal   int    `json:"signal,omitempty"`
	Code     int    `json:"code"`
}

// DaemonStart is the command line and environment of the daemon.
type DaemonStart struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
}

// DaemonStatus is the state of the daemon process. A daemon that crashes is restarted. A daemon
// that exits by itself soon after its first start is not restarted.
type DaemonStatus struct {
	Running    bool      `json:"running"`
	Restarting bool      `json:"restarting,omitempty"` // the daemon has crashed and will be restarted soon
	Restarts   int       `json:"restarts,omitempty"`   // number of restarts since the last DaemonStart
	PID        int       `json:"pid,omitempty"`        // inside the emulated host
	Exit       *ExecExit `json:"exit,omitempty"`       // how the last process ended
	Log        string    `json:"log"`                  // last output of the daemon
}

// Space maps a directory to the free bytes of its file system.
type Space map[string]uint64

// FrameType is the first byte of a frame.
type FrameType uint8

// Frames of an exec stream.
const (
	FrameStart  FrameType = iota + 1 // host → machine, first: JSON ExecStart
	FrameStdin                       // host → machine; an empty frame is the end of file; see FrameStdinDone
	FrameSignal                      // host → machine: one byte, the signal's number
	FrameStdout                      // machine → host
	FrameStderr                      // machine → host
	// Machine → host: the process has read the last FrameStdin, or will never read it. The host
	// must wait for this frame before it sends another FrameStdin.
	FrameStdinDone
	FrameExit     // machine → host, last: JSON ExecExit
	frameTypesEnd // first invalid type
)

// Only one FrameStdin may be pending, so that the emulated host can always receive. With more of
// them, the emulated host's receive window could fill up with input that the process does not read.
// The emulated host would then not see the end of the connection behind that input, and would not
// notice that the client has exited.

// MaxFrame is the maximum length of a frame's payload in bytes.
const MaxFrame = 1 << 20

// headerSize is the size of a frame's type (1 byte) and of its payload's length (u32, big endian).
const headerSize = 5

// WriteFrame writes one frame in one Write call. A payload above MaxFrame is an error.
func WriteFrame(w io.Writer, t FrameType, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("write frame: %d bytes, at most %d are allowed", len(payload), MaxFrame)
	}
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	if _, err := w.Write(append(b, payload...)); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// WriteJSON writes one frame with v as JSON.
func WriteJSON(w io.Writer, t FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return WriteFrame(w, t, b)
}

// ReadFrame reads one frame. The error is io.EOF only if the stream ends between two frames.
func ReadFrame(r io.Reader) (FrameType, []byte, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, nil, io.EOF
		}
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	t, n := FrameType(h[0]), binary.BigEndian.Uint32(h[1:])
	if t == 0 || t >= frameTypesEnd {
		return 0, nil, fmt.Errorf("read frame: unknown type %d", t)
	}
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("read frame: %d bytes, at most %d are allowed", n, MaxFrame)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", noEOF(err))
	}
	return t, payload, nil
}

// noEOF replaces io.EOF, so that a truncated frame does not look like the end of the stream.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
