package pid1

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clockTolerance is how far the guest's wall clock may be from the host's before a fork sets it: setting it wakes
// every timer on it, and messages take some of this long to arrive.
const clockTolerance = 2 * time.Millisecond

// ioctls of random(4).
const (
	rndAddToEntCnt = 0x40045201 // RNDADDTOENTCNT
	rndReseedCRNG  = 0x5207     // RNDRESEEDCRNG
)

// Identity changes what a guest shares with its siblings after a fork: the kernel's random numbers, the clock and the
// name. Its device is opened ahead of the fork, so that a fork opens nothing.
type Identity struct{ random int } // /dev/urandom

// OpenIdentity opens what Identity needs.
func OpenIdentity() (*Identity, error) {
	fd, err := unix.Open("/dev/urandom", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("identity: open /dev/urandom: %w", err)
	}
	return &Identity{fd}, nil
}

// Reseed mixes entropy into the kernel's pool, credits it and reseeds the generator from the pool at once, so that
// every later read of random bytes depends on it.
//
// These three steps are RNDADDENTROPY taken apart: that ioctl wants a pointer to a struct of variable length, which
// Go can only build with unsafe.
func (id *Identity) Reseed(entropy []byte) error {
	if len(entropy) < 32 {
		return fmt.Errorf("reseed: entropy has %d bytes; send 32 or more", len(entropy))
	}
	if n, err := unix.Write(id.random, entropy); err != nil || n != len(entropy) {
		return fmt.Errorf("reseed: mix: wrote %d of %d bytes: %w", n, len(entropy), err)
	}
	if err := unix.IoctlSetPointerInt(id.random, rndAddToEntCnt, len(entropy)*8); err != nil {
		return fmt.Errorf("reseed: credit entropy: %w", err)
	}
	if err := unix.IoctlSetInt(id.random, rndReseedCRNG, 0); err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return nil
}

// SetClock sets the wall clock to ns nanoseconds since 1970 unless it is right within a few milliseconds.
func (id *Identity) SetClock(ns int64) error {
	if ns <= 0 {
		return errors.New("set clock: realtime_nanos is not positive")
	}
	if time.Since(time.Unix(0, ns)).Abs() <= clockTolerance {
		return nil
	}
	ts := unix.NsecToTimespec(ns)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// SetHostname sets the kernel's host name. /etc/hostname keeps the snapshot's: a file would cost each child disk
// blocks for a name that the next fork changes again.
func (id *Identity) SetHostname(name []byte) error {
	if len(name) == 0 {
		return nil
	}
	if err := unix.Sethostname(name); err != nil {
		return fmt.Errorf("set hostname %q: %w", name, err)
	}
	return nil
}
