package main

import (
	"net"
	"sync"
	"time"
)

// prodding is a connection to an agent's port for forks. A guest that has dropped it tells the
// other end so when it gets another packet, and not before. So prodding sends a byte that the agent
// does not read, again and again, until the connection ends.
type prodding struct {
	net.Conn
	begun  sync.Once
	closed chan struct{}
}

// prodEvery bounds how late a dropped connection is noticed. An answer takes 20 times as long on an
// emulated host.
const prodEvery = 5 * time.Millisecond

// Write begins to prod when the message has been sent.
func (p *prodding) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	p.begun.Do(func() { go p.prod() })
	return n, err
}

func (p *prodding) prod() {
	tick := time.NewTicker(prodEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
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
