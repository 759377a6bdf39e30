package pid1

import (
	"errors"
	"fmt"
	"os"
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
type Identity struct{ random *os.File }

// OpenIdentity opens what Identity needs.
func OpenIdentity() (*Identity, error) {
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return &Identity{f}, nil
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
	if _, err := id.random.Write(entropy); err != nil {
		return fmt.Errorf("reseed: mix: %w", err)
	}
	fd := int(id.random.Fd())
	if err := unix.IoctlSetPointerInt(fd, rndAddToEntCnt, len(entropy)*8); err != nil {
		return fmt.Errorf("reseed: credit entropy: %w", err)
	}
	if err := unix.IoctlSetInt(fd, rndReseedCRNG, 0); err != nil {
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
func (id *Identity) SetHostname(name string) error {
	if name == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set hostname %q: %w", name, err)
	}
	return nil
}
