// Package uffd freezes guest memory without stopping the guest for long. It write-protects the
// dirty pages with userfaultfd, and copies them to a layer file in the background. When the guest
// wants to write a protected page, that page is copied first. When the layer has become part of a
// snapshot, pages that the guest has not written in the meantime can be replaced by a mapping of
// the layer, to free memory.
//
// Package machine decides what to freeze and when. It stops the vCPUs and quiesces the devices
// during Freeze. Documentation/admin-guide/mm/userfaultfd.rst describes Linux's interface.
package uffd

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl requests of <linux/userfaultfd.h>.
const (
	ioNew          = 0xaa00     // USERFAULTFD_IOC_NEW, for /dev/userfaultfd
	ioAPI          = 0xc018aa3f // UFFDIO_API
	ioRegister     = 0xc020aa00 // UFFDIO_REGISTER
	ioWake         = 0x8010aa02 // UFFDIO_WAKE
	ioWriteProtect = 0xc018aa06 // UFFDIO_WRITEPROTECT
)

const (
	apiVersion    = 0xaa
	registerWP    = 1 << 1 // UFFDIO_REGISTER_MODE_WP
	protect       = 1 << 0 // UFFDIO_WRITEPROTECT_MODE_WP
	eventFault    = 0x12   // UFFD_EVENT_PAGEFAULT
	messageSize   = 32     // struct uffd_msg
	addressOffset = 16     // offset of the address in a page-fault message
)

// fd is a userfaultfd of this process.
type fd int

// open makes a userfaultfd for this process from an open /dev/userfaultfd. The userfaultfd must
// also report faults in kernel mode, because KVM writes guest memory in kernel mode.
func open(device int) (fd, error) {
	n, err := ioctl(device, ioNew, unix.O_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("create userfaultfd: %w", err)
	}
	u := fd(n)
	api := struct{ api, features, ioctls uint64 }{api: apiVersion}
	if err := u.call(ioAPI, unsafe.Pointer(&api)); err != nil {
		return -1, errors.Join(fmt.Errorf("negotiate userfaultfd: %w", err), unix.Close(int(u)))
	}
	return u, nil
}

func (u fd) register(start uintptr, length uint64) error {
	r := struct{ start, length, mode, ioctls uint64 }{uint64(start), length, registerWP, 0}
	err := u.call(ioRegister, unsafe.Pointer(&r))
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("register %d bytes for write protection: %w (is the directory of the memory layers on tmpfs?)",
			length, err)
	}
	if err != nil {
		return fmt.Errorf("register %d bytes for write protection: %w", length, err)
	}
	return nil
}

// writeProtect sets or drops the write protection of whole pages. When it drops the protection, it
// also wakes the threads that wait to write the pages.
func (u fd) writeProtect(start uintptr, length uint64, on bool) error {
	r := struct{ start, length, mode uint64 }{uint64(start), length, 0}
	if on {
		r.mode = protect
	}
	if err := u.call(ioWriteProtect, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("write-protect %d bytes (%v): %w", length, on, err)
	}
	return nil
}

// wake wakes the threads that wait to write these pages, so that they try again.
func (u fd) wake(start uintptr, length uint64) error {
	r := struct{ start, length uint64 }{uint64(start), length}
	if err := u.call(ioWake, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("wake the writers of %d bytes: %w", length, err)
	}
	return nil
}

// nextFault waits for a write to a protected page and returns the address of the write.
func (u fd) nextFault() (uintptr, error) {
	var msg [messageSize]byte
	for {
		n, err := unix.Read(int(u), msg[:])
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
		case err != nil:
			return 0, fmt.Errorf("read page faults: %w", err)
		case n == messageSize && msg[0] == eventFault:
			return *(*uintptr)(unsafe.Pointer(&msg[addressOffset])), nil
		}
	}
}

// call makes an ioctl. It retries after EINTR, and after EAGAIN, which means that another change of
// the mappings was in progress.
func (u fd) call(req uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(u), req, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return errno
		}
	}
}

func ioctl(fd int, req, arg uintptr) (uintptr, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, arg)
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}
