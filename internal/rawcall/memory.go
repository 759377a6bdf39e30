package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const readWrite = unix.PROT_READ | unix.PROT_WRITE

// Map returns new zeroed memory, which Unmap frees.
func Map(size int) ([]byte, error) {
	at, err := mmap(nil, size, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(at), size), nil
}

// MapOver maps a file over the memory p, copy-on-write and without reserving memory. The previous
// content of p is lost. The memory p must not be in Go's heap. The address of p, and the parameter
// offset, must be multiples of the page size.
func MapOver(p []byte, fd int, offset uint64) error {
	_, err := mmap(start(p), len(p), unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE, fd, offset)
	return err
}

func mmap(at unsafe.Pointer, size, flags, fd int, offset uint64) (unsafe.Pointer, error) {
	r, _, errno := unix.RawSyscall6(unix.SYS_MMAP, uintptr(at), uintptr(size), readWrite, uintptr(flags), uintptr(fd),
		uintptr(offset))
	return *(*unsafe.Pointer)(unsafe.Pointer(&r)), orNil(errno) // r is not an address in Go's heap
}

// Unmap frees memory from Map.
func Unmap(p []byte) error {
	_, _, errno := unix.RawSyscall(unix.SYS_MUNMAP, uintptr(start(p)), uintptr(len(p)), 0)
	return orNil(errno)
}

// Advise is madvise(2). Unlike the other functions, it returns EINTR and EAGAIN to its caller.
func Advise(p []byte, advice int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_MADVISE, uintptr(start(p)), uintptr(len(p)), uintptr(advice))
	return orNil(errno)
}
