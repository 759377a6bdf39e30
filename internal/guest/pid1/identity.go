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

// clockTolerance is the largest difference between the guest's and the host's wall clock at which a
// fork does not set the guest's clock. Setting the clock wakes every timer that uses it. The
// tolerance includes the time that the host's message takes to arrive.
const clockTolerance = 2 * time.Millisecond

// ioctls of random(4).
const (
	rndAddToEntCnt = 0x40045201 // RNDADDTOENTCNT
	rndReseedCRNG  = 0x5207     // RNDRESEEDCRNG
)

// Identity changes, after a fork, the properties that a guest shares with its siblings: the
// kernel's random numbers, the clock, the names and the ids. It opens its files before the fork, so
// that a fork opens nothing.
type Identity struct {
	random int // /dev/urandom
	hwrng  int // /dev/hwrng; -1 if the kernel has none
	files  idFiles
}

// OpenIdentity opens the files of Identity. It also creates the files that a fork rewrites, and
// mounts each of them over the path at which programs look for it.
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

// Shared returns the files that could not be replaced with the guest's own files. These files have
// the same content in all of the guest's siblings.
func (id *Identity) Shared() []string { return id.files.shared }

// Rehearse makes the system calls of SetHostname, but changes nothing. So the memory that
// SetHostname needs is allocated before the snapshot.
func (id *Identity) Rehearse() error { return id.files.rehearse() }

// Reseed mixes entropy into the kernel's pool, credits it, and immediately reseeds the generator
// from the pool. So all random bytes that are read later depend on the given entropy. Linux has
// also fetched bytes from the random number device before the fork, and /dev/hwrng would return the
// same bytes in every sibling. So Reseed reads and drops these bytes.
//
// The first three steps together are equivalent to RNDADDENTROPY. That ioctl needs a pointer to a
// struct of variable length, which Go can build only with package unsafe.
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

// dropFetched reads and drops the bytes that Linux has fetched for /dev/hwrng, which is open in
// non-blocking mode. It does not wait for more bytes, because bytes that the device delivers later
// are different in each forked sandbox.
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

// SetClock sets the wall clock to ns nanoseconds since 1970. If the clock differs from this time by
// at most clockTolerance, SetClock does nothing.
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

// SetHostname sets the kernel's host name. It also writes the files that depend on the name: the
// ids of the machine and of its boot, and the line of /etc/hosts that resolves the name. It does
// not change /etc/hostname, which keeps the name of the snapshot.
func (id *Identity) SetHostname(name []byte) error {
	if len(name) == 0 {
		return nil
	}
	if err := rawcall.SetHostname(name); err != nil {
		return fmt.Errorf("set hostname %q: %w", name, err)
	}
	return id.files.write(name)
}
