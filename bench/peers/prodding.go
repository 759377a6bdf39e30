package main

import (
	"net"
	"sync"
	"time"
)

// prodding is a connection to an agent's port for forks. If a guest has dropped a connection, the
// guest reports this only when it receives another packet. So prodding sends a byte repeatedly
// until the connection ends. The agent ignores these bytes.
type prodding struct {
	net.Conn
	begun  sync.Once
	closed chan struct{}
}

// prodEvery is the interval between the bytes of a prodding. A dropped connection is noticed after
// this interval. On an emulated host, an answer takes 20 times as long as this interval.
const prodEvery = 5 * time.Millisecond

// Write sends the message and then starts prodding.
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
			return // the reader of the connection gets the same error
		}
	}
}

// Close closes the connection. It must be called only once.
func (p *prodding) Close() error {
	close(p.closed)
	return p.Conn.Close()
}
