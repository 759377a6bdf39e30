package pid1

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/rawcall"
)

// clockTolerance is the difference between the guest's wall clock and the host's up to which a fork
// does not set the clock. Setting it wakes every timer on it, and a message takes part of that time
// to arrive.
const clockTolerance = 2 * time.Millisecond

// ioctls of random(4).
const (
	rndAddToEntCnt = 0x40045201 // RNDADDTOENTCNT
	rndReseedCRNG  = 0x5207     // RNDRESEEDCRNG
)

// Identity changes what a guest shares with its siblings after a fork: the kernel's random numbers,
// the clock, the names and the ids. Its files are opened before the fork, so that a fork opens
// nothing.
type Identity struct {
	random int // /dev/urandom
	hwrng  int // /dev/hwrng; -1: this kernel has none
	files  idFiles
}

// OpenIdentity opens the files of Identity, and mounts the files that a fork rewrites where
// programs look for them.
func OpenIdentity(log *kmsg.Log) (*Identity, error) {
	fd, err := unix.Open("/dev/urandom", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("identity: open /dev/urandom: %w", err)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	hwrng, err := unix.Open("/dev/hwrng", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("identity: open /dev/hwrng: %w", err)
		}
		hwrng = -1
	}
	return &Identity{fd, hwrng, mountIDFiles(fd, []byte(name), log)}, nil
}

// Shared returns the files that could not be made the guest's own, so that programs find the same
// content as in its siblings.
func (id *Identity) Shared() []string { return id.files.shared }

// Rehearse makes the calls of SetHostname without changing anything, so that everything that
// SetHostname needs is in memory.
func (id *Identity) Rehearse() error { return id.files.rehearse() }

// Reseed mixes entropy into the kernel's pool, credits it and reseeds the generator from the pool
// at once, so that every later read of random bytes depends on it. What Linux has fetched from the
// random number device before the fork is dropped: /dev/hwrng would give it to every sibling.
//
// These three steps are RNDADDENTROPY taken apart: that ioctl wants a pointer to a struct of
// variable length, which Go can only build with unsafe.
func (id *Identity) Reseed(entropy []byte) error {
	if len(entropy) < 32 {
		return fmt.Errorf("reseed: entropy has %d bytes; send 32 or more", len(entropy))
	}
	if n, err := rawcall.Write(id.random, entropy); err != nil || n != len(entropy) {
		return fmt.Errorf("reseed: mix: wrote %d of %d bytes: %w", n, len(entropy), err)
	}
	if err := rawcall.IoctlInt(id.random, rndAddToEntCnt, int32(len(entropy)*8)); err != nil {
		return fmt.Errorf("reseed: credit entropy: %w", err)
	}
	if err := rawcall.IoctlInt(id.random, rndReseedCRNG, 0); err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return dropFetched(id.hwrng)
}

// maxFetched bounds the bytes that Linux fetches in advance for readers of /dev/hwrng: 64 in the
// driver and 64 in the core that all such drivers share.
const maxFetched = 2 * 64

// dropFetched reads the available bytes of the non-blocking /dev/hwrng. It does not wait: bytes
// that the device delivers later are the child's own.
func dropFetched(hwrng int) error {
	if hwrng < 0 {
		return nil
	}
	var p [maxFetched]byte
	for dropped := 0; dropped < maxFetched; {
		n, err := rawcall.Read(hwrng, p[dropped:])
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENODEV), err == nil && n == 0:
			return nil
		case err != nil:
			return fmt.Errorf("reseed: drop what /dev/hwrng has fetched: %w", err)
		}
		dropped += n
	}
	return nil
}

// SetClock sets the wall clock to ns nanoseconds since 1970, unless it is already within
// clockTolerance.
func (id *Identity) SetClock(ns int64) error {
	if ns <= 0 {
		return errors.New("set clock: realtime_nanos is not positive")
	}
	if time.Since(time.Unix(0, ns)).Abs() <= clockTolerance {
		return nil
	}
	if err := rawcall.SetClock(unix.NsecToTimespec(ns)); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// SetHostname sets the kernel's host name and writes the files that depend on it: the ids of the
// machine and of its boot, and the line of /etc/hosts that resolves the name. /etc/hostname keeps
// the snapshot's.
func (id *Identity) SetHostname(name []byte) error {
	if len(name) == 0 {
		return nil
	}
	if err := rawcall.SetHostname(name); err != nil {
		return fmt.Errorf("set hostname %q: %w", name, err)
	}
	return id.files.write(name)
}
