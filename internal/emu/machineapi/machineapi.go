// Package machineapi is what the host and the init of a `forkd machine` (forkd-machined) say to
// each other: HTTP paths, JSON bodies and the frames of an exec stream.
//
// The package holds the messages and their encoding; it opens no connection. Both sides come out of
// one build, so there is no version to negotiate.
package machineapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Ports inside the emulated host. Each is forwarded from a loopback port of the host.
const (
	InitPort   = 8888 // forkd-machined's own API
	DaemonPort = 8889 // the forkd daemon's API
)

// Paths of forkd-machined's API. Every request needs "Authorization: Bearer <token>".
const (
	PathPing     = "/ping"     // GET → Ping
	PathSpace    = "/space"    // GET with a query of dir=PATH, once or more → Space
	PathExec     = "/exec"     // POST with Upgrade → frames, the first one FrameStart
	PathDaemon   = "/daemon"   // GET → DaemonStatus; PUT DaemonStart
	PathPowerOff = "/poweroff" // POST → 202, then the emulated host goes down
)

// Upgrade is the protocol name of an exec stream.
const Upgrade = "forkd-machine-exec"

// ConfigPath is where the init finds its Config in the initramfs.
const ConfigPath = "/etc/forkd/machine.json"

// ModulesDir holds the kernel modules in the initramfs, named so that their order is the order to
// load them in.
const ModulesDir = "/lib/forkd-modules"

// StateDir is where the state disk is mounted.
const StateDir = "/var/lib/forkd"

// Config is written by the host into the emulated host's initramfs.
type Config struct {
	Token  string  `json:"token"`   // bearer token of the init's API
	BootID string  `json:"boot_id"` // names this boot; see Ping
	Shares []Share `json:"shares"`
}

// Share is a directory of the host that the emulated host sees under the same absolute path. The
// emulator refuses to write there unless it is writable.
type Share struct {
	Tag      string `json:"tag"` // 9p mount tag
	Dir      string `json:"dir"`
	Writable bool   `json:"writable,omitempty"`
}

// Ping is the answer of a live machine.
type Ping struct {
	BootID        string  `json:"boot_id"`
	UptimeSeconds float64 `json:"uptime_seconds"` // since the emulated host's kernel started
}

// ExecStart says what to run. Argv[0] is looked up in the emulated host's PATH.
type ExecStart struct {
	Argv      []string `json:"argv"`
	Env       []string `json:"env,omitempty"` // KEY=VALUE, added to the emulated host's own environment
	Dir       string   `json:"dir,omitempty"` // default: /
	TimeoutMS int64    `json:"timeout_ms,omitempty"`
}

// ExecExit ends an exec stream. The first case that applies: Error (nothing ran), TimedOut, Signal,
// Code.
type ExecExit struct {
	Error    string `json:"error,omitempty"`
	NotFound bool   `json:"not_found,omitempty"` // with Error: there is no such program
	TimedOut bool   `json:"timed_out,omitempty"`
	Signal   int    `json:"signal,omitempty"`
	Code     int    `json:"code"`
}

// DaemonStart says how to run the daemon.
type DaemonStart struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
}

// DaemonStatus is the state of the daemon's process. One that dies by accident is started again;
// one that ends by itself soon after its start is not.
type DaemonStatus struct {
	Running    bool      `json:"running"`
	Restarting bool      `json:"restarting,omitempty"` // it died, and will be started again in a moment
	Restarts   int       `json:"restarts,omitempty"`   // since the last start by the host
	PID        int       `json:"pid,omitempty"`        // inside the emulated host
	Exit       *ExecExit `json:"exit,omitempty"`       // how the last one ended
	Log        string    `json:"log"`                  // the end of its standard output and error
}

// Space has the free bytes of file systems by a directory on them.
type Space map[string]uint64

// FrameType is the first byte of a frame.
type FrameType uint8

// Frames of an exec stream.
const (
	FrameStart     FrameType = iota + 1 // host → machine, first: JSON ExecStart
	FrameStdin                          // host → machine; empty means end of file; the next only after FrameStdinDone
	FrameSignal                         // host → machine: one byte, the signal's number
	FrameStdout                         // machine → host
	FrameStderr                         // machine → host
	FrameStdinDone                      // machine → host: the process has read the last FrameStdin, or never will
	FrameExit                           // machine → host, last: JSON ExecExit
	frameTypesEnd                       // not a frame
)

// One FrameStdin at a time keeps the emulated host's receive window open: were it full of input
// that the process does not read, the end of the connection behind it would stay unseen, and with
// it the death of the client.

// MaxFrame bounds a frame's payload in bytes.
const MaxFrame = 1 << 20

// headerSize is a frame's type (1 byte) and its payload's length (u32, big endian).
const headerSize = 5

// WriteFrame writes one frame in one Write call. Payloads above MaxFrame are an error.
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

// noEOF keeps a frame cut short from looking like a clean end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
