package main

import (
	"net"
	"sync"
	"time"
)

// prodding is a connection to an agent's port for forks. A guest that has dropped the connection
// signals that only when it receives another packet. So prodding repeatedly sends a byte, which the
// agent does not read, until the connection ends.
type prodding struct {
	net.Conn
	begun  sync.Once
	closed chan struct{}
}

// prodEvery bounds the delay until a dropped connection is noticed. An answer takes 20 times as
// long on an emulated host.
const prodEvery = 5 * time.Millisecond

// Write starts prodding when the message has been sent.
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
			return // the reader gets the error
		}
	}
}

// Close is called once.
func (p *prodding) Close() error {
	close(p.closed)
	return p.Conn.Close()
}
