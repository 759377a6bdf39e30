package main

import (
	"net"
	"sync"
	"time"
)

// prodding is a connection to an agent's port for forks. A guest that has dropped it tells the
// other end so when it gets another packet, and not before. So there are some, of a byte that the
// agent does not read, at longer and longer intervals.
type prodding struct {
	net.Conn
	begun  sync.Once
	closed chan struct{}
}

// firstProd is about how long an answer takes on an emulated host.
const firstProd = 100 * time.Millisecond

// Write begins to prod when the message has been sent.
func (p *prodding) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	p.begun.Do(func() { go p.prod() })
	return n, err
}

func (p *prodding) prod() {
	for wait := firstProd; ; wait *= 2 {
		select {
		case <-time.After(wait):
		case <-p.closed:
			return
		}
		if _, err := p.Conn.Write([]byte{0}); err != nil {
			return // the reader is told
		}
	}
}

// Close is called once.
func (p *prodding) Close() error {
	close(p.closed)
	return p.Conn.Close()
}
