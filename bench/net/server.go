package main

import (
	"encoding/binary"
	"io"
	"net"
)

// serve starts the server for all clients, at every address of this namespace, and returns its
// port.
func serve() (int, error) {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return 0, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answer carries out the operation that the first byte names, until the client closes the
// connection.
func answer(c net.Conn) {
	defer c.Close()
	var op [1]byte
	if _, err := io.ReadFull(c, op[:]); err != nil {
		return
	}
	p := make([]byte, chunkBytes)
	switch op[0] {
	case opDown:
		for {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	case opUp:
		total := uint64(0)
		for {
			n, err := c.Read(p)
			total += uint64(n)
			if err != nil {
				_ = binary.Write(c, binary.LittleEndian, total) // if this fails, the client gets an error
				return
			}
		}
	case opRequest:
		for p = p[:requestBytes]; ; {
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	case opConnect:
		_, _ = c.Write(op[:])
	}
}
